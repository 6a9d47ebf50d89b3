"""The decoder: where a map of brightness is highest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.registry import DecoderSpec
from toy_extension.kind import Spot


class BrightestDecoder(Decoder):
    """(1, 1, h, w), brightness 0..1 -> Spot."""

    name = "toy_decoder"

    signature = "(1, 1, h, w)"
    patterns = ((1, 1, "h", "w"),)

    def decode(self, outputs: Sequence[np.ndarray], source_size: tuple[int, int]) -> Spot:
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
