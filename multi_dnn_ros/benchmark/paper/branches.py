"""Compares running the independent branches of a network concurrently with running all its operations in sequence.

One of the networks is an encoder of CSWinTT (Song et al. 2022, "Transformer Tracking with Cyclic Shifting Window
Attention"): each head attends between whole windows of the feature map and shifts the windows of the keys cyclically,
so that heads with windows of different sizes cannot share one matrix product and cannot simply be merged. Weights are
random; only the time matters.
"""

from __future__ import annotations

import copy
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from multi_dnn_ros.backends import Stage, StaticStage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.models.balance import balance, random_image
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.serving.choices import choose_backend

SERIAL = "serial"
#: Numbers of streams that are compared with serial execution.
STREAMS = (2, 4, 8)
_PRECISION = "fp16"
WIDTH = 256
#: Side of each head's windows, in features.
WINDOWS = (1, 1, 2, 2, 4, 4, 8, 8)
LAYERS = 4
#: Pixels of the image per feature.
STRIDE = 8
ENCODER = "encoder-windows"
#: Input sizes (width, height) of the networks that are measured by default.
SIZES = {
    "torchvision:inception_v3": (299, 299),
    "torchvision:googlenet": (224, 224),
    "torchvision:retinanet_resnet50_fpn": (800, 448),
    "torchvision:ssd300_vgg16": (300, 300),
    "torchvision:deeplabv3_resnet50": (520, 520),
    ENCODER: (256, 256),
}
_FALLBACK_SIZE = (224, 224)


def measure_branches(
    name: str, device: torch.device, *, size: tuple[int, int] | None = None, rounds: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Milliseconds per image, for a network in sequence and with each number of streams of STREAMS.

    Each condition is one captured graph at fp16, also with Inductor's kernels, and a sample is the mean of ten replays
    without gaps. Every condition runs once per round, in random order. name: as for :func:`make_network`. size:
    (width, height) of the image; None: the network's default. Raises ValueError if a condition's outputs differ from
    the serial ones.
    """
    network = make_network(name, size, seed)
    order = random.Random(seed)
    with torch.cuda.device(device), torch.inference_mode():
        stages = _stages(network, device)
        inputs = tuple(tensor.to(device) for tensor in network.inputs)
        expected = tuple(tensor.clone() for tensor in stages[SERIAL](inputs))
        for condition, stage in stages.items():
            try:  # both may be off by the tolerance
                check_agreement(stage(inputs), expected, 2 * PRECISIONS[_PRECISION].tolerance(device))
            except ValueError as error:
                raise ValueError(f"{name}, {condition}: {error}") from None
        times: dict[str, list[float]] = {condition: [] for condition in stages}
        for _ in tqdm(range(rounds), desc=name, unit="round", disable=None):
            for condition in order.sample(list(stages), len(stages)):
                stage = stages[condition]
                times[condition].append(gpu_ms(lambda stage=stage: stage(inputs)))  # type: ignore[misc]
    medians = {condition: statistics.median(samples) for condition, samples in times.items()}
    return {
        "network": network.name,
        "inputs": [list(tensor.shape) for tensor in network.inputs],
        "precision": _PRECISION,
        "streams_used": {condition: streams_of(stage) for condition, stage in stages.items()},
        "ms": {condition: distribution(samples) for condition, samples in times.items()},
        "over_serial": {condition: ms / medians[SERIAL] for condition, ms in medians.items() if condition != SERIAL},
    }


def _stages(network: BranchNetwork, device: torch.device) -> dict[str, Any]:
    """The captured network by condition. Raises ValueError if it cannot be captured."""
    stages: dict[str, Stage] = {}
    show = partial(tqdm.write, file=sys.stderr)  # compiling takes minutes
    for backend, prefix in (("cuda_graph", ""), ("inductor", "inductor, ")):
        for count in (1, *STREAMS):
            name = prefix + (SERIAL if count == 1 else f"{count} streams")
            # A copy, because preparing moves the weights, which graphs captured earlier still read.
            jobs = cut_module(copy.deepcopy(network.module), network.inputs, 1, fold_batch_norm=True)
            chosen = choose_backend(
                backend, device, _PRECISION, dnn=f"{network.name}, {name}", progress=show, branches=count
            )
            (stages[name],) = chosen.prepare(jobs, network.inputs, device)
            if not isinstance(stages[name], StaticStage):
                raise ValueError(f"{network.name}, {name}: it cannot be captured; the log has the reason")
    return stages


# -- the networks


@dataclass(frozen=True)
class BranchNetwork:
    """One network. module: in eval mode, on the CPU. inputs: of one image."""

    name: str
    module: nn.Module
    inputs: Tensors


def make_network(name: str, size: tuple[int, int] | None = None, seed: int = 0) -> BranchNetwork:
    """A network with random weights. name: ENCODER, or as for parameter `dnn.<dnn>.model`.

    size: (width, height) of the image; None: the size in SIZES, or the model's. Raises ModelError, and UsageError for a
    size that the encoder's windows do not divide.
    """
    torch.manual_seed(seed)
    if name == ENCODER:
        width, height = size or SIZES[name]
        step = STRIDE * max(WINDOWS)
        if width % step or height % step:
            raise UsageError(f"--size is {width}x{height}; allowed for {name}: multiples of {step}")
        template_side = max(WINDOWS) * max(1, width // (2 * step))  # half of the search region
        template = torch.randn(1, template_side, template_side, WIDTH)
        search = torch.randn(1, height // STRIDE, width // STRIDE, WIDTH)
        return BranchNetwork(name, Encoder().eval(), (search, template))
    source = load_network(name, weights="random" if name.startswith("torchvision:") else "default", size=size)
    width, height = size or SIZES.get(name) or source.size or _FALLBACK_SIZE
    image = random_image(width, height, seed)
    network = source.network.eval()
    if name.startswith("torchvision:"):
        balance(network, image)
    return BranchNetwork(name, network, (image,))


class WindowHead(nn.Module):
    """One head: attention of windows of `side` x `side` features to all cyclic shifts of the windows of both maps."""

    def __init__(self, width: int, channels: int, side: int) -> None:
        super().__init__()
        self.side, self.channels = side, channels
        self.query, self.key, self.value = (nn.Linear(width, channels) for _ in range(3))
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        row = (rows.reshape(-1, 1) + rows.reshape(1, -1)) % side
        column = (columns.reshape(-1, 1) + columns.reshape(1, -1)) % side
        self.shifts: torch.Tensor
        self.register_buffer("shifts", row * side + column)  # (shift, position) -> position in the window

    def forward(self, search: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """search: (1, H, W, width); template: (1, h, w, width). Returns (1, H, W, channels)."""
        query = self._windows(self.query(search)).flatten(1)
        maps = (search, template)
        keys = torch.cat([self._shifted(self.key(each)) for each in maps])
        values = torch.cat([self._shifted(self.value(each)) for each in maps])
        weights = torch.softmax(query @ keys.transpose(0, 1) * query.shape[1] ** -0.5, -1)
        rows, columns, side = search.shape[1] // self.side, search.shape[2] // self.side, self.side
        split = (weights @ values).view(rows, columns, side, side, self.channels)
        return split.permute(0, 2, 1, 3, 4).reshape(1, rows * side, columns * side, self.channels)

    def _windows(self, values: torch.Tensor) -> torch.Tensor:
        """(1, H, W, channels) -> (windows, positions, channels)."""
        _, height, width, channels = values.shape
        split = values.view(height // self.side, self.side, width // self.side, self.side, channels)
        return split.permute(0, 2, 1, 3, 4).reshape(-1, self.side**2, channels)

    def _shifted(self, values: torch.Tensor) -> torch.Tensor:
        """(1, H, W, channels) -> (windows * shifts, positions * channels)."""
        windows = self._windows(values)
        return windows.flatten(1) if self.side == 1 else windows[:, self.shifts].flatten(0, 1).flatten(1)


class EncoderLayer(nn.Module):
    """Attention with one head per entry of `windows`, and a feed-forward block, each with a residual and a norm."""

    def __init__(self, windows: Sequence[int]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(WindowHead(WIDTH, WIDTH // len(windows), side) for side in windows)
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, search: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """(1, H, W, WIDTH), (1, h, w, WIDTH) -> (1, H, W, WIDTH)."""
        attended = torch.cat([head(search, template) for head in self.heads], -1)
        search = self.norms[0](search + self.out_proj(attended))
        result: torch.Tensor = self.norms[1](search + self.feed_forward(search))
        return result


class Encoder(nn.Module):
    """LAYERS layers. forward(search map, template map), channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(WINDOWS) for _ in range(LAYERS))

    def forward(self, search: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """As EncoderLayer."""
        for layer in self.layers:
            search = layer(search, template)
        return search
