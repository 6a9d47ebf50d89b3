"""A network as served by the node, for scoring: cut, folded, and run by a backend in its precision, image by image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multi_dnn_ros.common.captured_warnings import CapturedWarnings
from multi_dnn_ros.planning.timing import Target, prepared
from multi_dnn_ros.training.trainable import SingleImages


class Served(nn.Module):
    """forward(images (B, 3, h, w) float32 on the target's device) -> raw outputs of B images, float32: one tensor if
    the network returns one, otherwise a tuple of its tensors in the order of tuples and dicts.

    warnings: the backend's warnings, for example about jobs that stay in float32 or eager mode.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int], target: Target) -> None:
        """network: on the CPU; not modified. size: (width, height) of its input. Raises what cutting or the backend
        raises.
        """
        super().__init__()
        width, height = size
        # Networks exported for one image are served unchanged.
        single = network.network if isinstance(network, SingleImages) else network
        with CapturedWarnings("multi_dnn_ros.backends") as captured:
            self._chain = prepared(single, (torch.zeros(1, 3, height, width),), target)
        self.warnings = captured.messages
        # Scoring uses the device of the first parameter; the stages do not expose theirs.
        self.device_marker = nn.Parameter(torch.empty(0, device=target.device), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        with torch.cuda.device_of(images):  # graphs launch on the current device; no effect on a CPU
            outputs = [self._run_single(image) for image in images.split(1)]
            leaves = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
        return leaves[0] if len(leaves) == 1 else leaves

    def _run_single(self, image: Tensor) -> tuple[Tensor, ...]:
        carried: tuple[Tensor, ...] = (image,)
        with torch.inference_mode():
            for stage in self._chain:
                carried = stage(carried)
        # Copy: captured graphs write all outputs to the same memory.
        return tuple(tensor.clone() for tensor in carried)
