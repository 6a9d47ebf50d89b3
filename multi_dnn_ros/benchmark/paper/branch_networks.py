"""The networks of `multi-dnn benchmark paper --branches`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.benchmark.paper.cyclic_windows import (
    SINGLE_FEATURE_WINDOWS,
    STRIDE,
    WIDTH,
    WINDOWS,
    Encoder,
    Tracker,
)
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.graph.balance import balance, random_image
from multi_dnn_ros.models.sources import load_network

#: The networks of this package: (whether with a backbone, window sizes of the heads).
TRACKERS = {
    "encoder-windows": (False, WINDOWS),
    "encoder-equal": (False, SINGLE_FEATURE_WINDOWS),
    "tracker-windows": (True, WINDOWS),
    "tracker-equal": (True, SINGLE_FEATURE_WINDOWS),
}
#: Input sizes (width, height).
SIZES = {
    "torchvision:inception_v3": (299, 299),
    "torchvision:googlenet": (224, 224),
    "torchvision:retinanet_resnet50_fpn": (800, 448),
    "torchvision:ssd300_vgg16": (300, 300),
    "torchvision:deeplabv3_resnet50": (520, 520),
    **dict.fromkeys(TRACKERS, (256, 256)),
}
#: The networks that are measured by default.
DEFAULT = tuple(name for name in SIZES if not name.endswith("-equal"))
_FALLBACK_SIZE = (224, 224)


@dataclass(frozen=True)
class BranchNetwork:
    """One network. module: in eval mode, on the CPU. inputs: of one image."""

    name: str
    module: nn.Module
    inputs: Tensors


def make_network(name: str, size: tuple[int, int] | None = None, seed: int = 0) -> BranchNetwork:
    """A network with random weights. name: a key of TRACKERS, or as for parameter `dnn.<dnn>.model`.

    size: (width, height) of the image; None: the size in SIZES, or the model's. Raises ModelError, and UsageError for a
    size that the tracker's windows do not divide.
    """
    torch.manual_seed(seed)
    if name in TRACKERS:
        return _tracker(name, size or SIZES[name], seed)
    source = load_network(name, weights="random" if name.startswith("torchvision:") else "default", size=size)
    width, height = size or SIZES.get(name) or source.size or _FALLBACK_SIZE
    image = random_image(width, height, seed)
    network = source.network.eval()
    if name.startswith("torchvision:"):
        balance(network, image)
    return BranchNetwork(name, network, (image,))


def _tracker(name: str, size: tuple[int, int], seed: int) -> BranchNetwork:
    step = STRIDE * max(WINDOWS)
    if any(side % step for side in size):
        raise UsageError(f"--size is {size[0]}x{size[1]}; allowed for {name}: multiples of {step}")
    with_backbone, windows = TRACKERS[name]
    columns, rows = (side // STRIDE for side in size)
    generator = torch.Generator().manual_seed(seed)
    template_side = max(WINDOWS) * max(1, columns // (2 * max(WINDOWS)))  # half of the search region
    template = torch.randn(1, template_side, template_side, WIDTH, generator=generator)
    image = random_image(*size, seed) if with_backbone else torch.randn(1, rows, columns, WIDTH, generator=generator)
    torch.manual_seed(seed)
    network = (Tracker(windows) if with_backbone else Encoder(windows)).eval()
    if isinstance(network, Tracker):
        balance(network.backbone, image)
    return BranchNetwork(name, network, (image, template))
