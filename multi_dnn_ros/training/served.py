"""A network as the node serves it, for scoring: cut, folded, through a backend in its precision, image by image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multi_dnn_ros.common.captured_warnings import CapturedWarnings
from multi_dnn_ros.planning.timing import Target, prepared
from multi_dnn_ros.training.trainable import SingleImages


class Served(nn.Module):
    """forward(images (B, 3, h, w) float32 on the target's device) -> raw outputs of B images, float32: the tensor of a
    network that returns one, else a tuple of its tensors in the order in which tuples and dicts hold them.

    warnings: what the backend had to say, of a job that stays float32 or eager for instance.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int], target: Target) -> None:
        """network: on the CPU; it stays as it is. size: of its input, (width, height). Raises what cutting or the
        backend raises.
        """
        super().__init__()
        width, height = size
        # What was exported for one image is served as it is.
        single = network.network if isinstance(network, SingleImages) else network
        with CapturedWarnings("multi_dnn_ros.backends") as captured:
            self._chain = prepared(single, (torch.zeros(1, 3, height, width),), target)
        self.warnings = captured.messages
        # The chain keeps its weights to itself; scoring asks a network's parameters for the device.
        self.place = nn.Parameter(torch.empty(0, device=target.device), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        with torch.cuda.device_of(images):  # graphs are launched on the current device; nothing changes on a CPU
            outputs = [self._one(image) for image in images.split(1)]
            leaves = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
        return leaves[0] if len(leaves) == 1 else leaves

    def _one(self, image: Tensor) -> tuple[Tensor, ...]:
        carried: tuple[Tensor, ...] = (image,)
        with torch.inference_mode():
            for stage in self._chain:
                carried = stage(carried)
        # Captured graphs write every image's outputs to the same memory. Copied out here, they are ordinary tensors.
        return tuple(tensor.clone() for tensor in carried)
