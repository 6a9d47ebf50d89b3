"""The decoder: where a map of brightness is highest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.results import OutputError
from toy_extension.kind import Spot


class BrightestDecoder(Decoder):
    """(1, 1, h, w), brightness 0..1 -> Spot."""

    name = "toy_decoder"

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        self.expect_outputs(outputs, 1)
        if outputs[0].ndim != 4 or outputs[0].shape[:2] != (1, 1):
            raise OutputError(f"output of shape {tuple(outputs[0].shape)}, but decoder toy_decoder reads (1, 1, h, w)")

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Spot:
        brightness = outputs[0][0, 0]
        row, column = divmod(int(brightness.argmax()), brightness.shape[1])
        down, across = source_size[0] / brightness.shape[0], source_size[1] / brightness.shape[1]
        return Spot((column + 0.5) * across, (row + 0.5) * down, float(brightness.max()))


SPEC = DecoderSpec(
    "toy_decoder",
    BrightestDecoder,
    signature="(1, 1, h, w)",
    result_kind="toy_kind",
    default_labels=("spot",),
)
