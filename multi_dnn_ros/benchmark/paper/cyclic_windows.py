"""A tracker with attention heads of different window sizes, as a benchmark network.

It follows CSWinTT (Song et al. 2022, "Transformer Tracking with Cyclic Shifting Window Attention"): each head attends
between whole windows of the feature map and shifts the windows of the keys cyclically, so that heads with windows of
different sizes cannot share one matrix product and cannot simply be merged. Weights are random; only the time matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torchvision.models import resnet50

WIDTH = 256
#: Side of each head's windows, in features.
WINDOWS = (1, 1, 2, 2, 4, 4, 8, 8)
#: The same number of heads, each with windows of one feature.
SINGLE_FEATURE_WINDOWS = (1,) * len(WINDOWS)
LAYERS = 4
#: Pixels of the image per feature.
STRIDE = 8


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
        query = _windows(self.query(search), self.side).flatten(1)
        maps = (search, template)
        keys = torch.cat([self._shifted(_windows(self.key(each), self.side)) for each in maps])
        values = torch.cat([self._shifted(_windows(self.value(each), self.side)) for each in maps])
        weights = torch.softmax(query @ keys.transpose(0, 1) * query.shape[1] ** -0.5, -1)
        return _map((weights @ values).view(-1, self.side**2, self.channels), search.shape[1], search.shape[2])

    def _shifted(self, windows: torch.Tensor) -> torch.Tensor:
        """(windows, positions, channels) -> (windows * shifts, positions * channels)."""
        if self.side == 1:
            return windows.flatten(1)
        return windows[:, self.shifts].flatten(0, 1).flatten(1)


class SeparateHeads(nn.Module):
    """One head per entry of `windows`; the results of the heads are concatenated."""

    def __init__(self, windows: Sequence[int]) -> None:
        super().__init__()
        self.windows = tuple(windows)
        self.heads = nn.ModuleList(WindowHead(WIDTH, WIDTH // len(windows), side) for side in windows)

    def forward(self, search: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """As WindowHead, with the channels of all heads."""
        return torch.cat([head(search, template) for head in self.heads], -1)


class EncoderLayer(nn.Module):
    """Attention and a feed-forward block, each with a residual and a norm."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, search: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """(1, H, W, WIDTH) -> the same shape."""
        search = self.norms[0](search + self.out_proj(self.attention(search, template)))
        result: torch.Tensor = self.norms[1](search + self.feed_forward(search))
        return result


class Encoder(nn.Module):
    """LAYERS layers with heads of the given windows. forward(search map, template map), channels last."""

    def __init__(self, windows: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(SeparateHeads(windows)) for _ in range(LAYERS))

    def forward(self, search: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        """(1, H, W, WIDTH), (1, h, w, WIDTH) -> (1, H, W, WIDTH)."""
        for layer in self.layers:
            search = layer(search, template)
        return search


class Tracker(nn.Module):
    """Backbone (ResNet50 up to `layer3`, dilated so that the stride is 8), encoder, and one convolutional tower each
    for the score and the box.

    forward(search image (1, 3, 8 H, 8 W), template map (1, h, w, WIDTH)): the template is computed once per track.
    """

    def __init__(self, windows: Sequence[int]) -> None:
        super().__init__()
        resnet = resnet50(weights=None, replace_stride_with_dilation=[False, True, False])
        parts = (resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool, resnet.layer1, resnet.layer2, resnet.layer3)
        self.backbone = nn.Sequential(*parts, nn.Conv2d(1024, WIDTH, 1))
        self.encoder = Encoder(windows)
        self.score, self.box = (_tower(outputs) for outputs in (1, 4))

    def forward(self, image: torch.Tensor, template: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(score map (1, 1, H, W), box map (1, 4, H, W))."""
        features = self.encoder(self.backbone(image).permute(0, 2, 3, 1), template).permute(0, 3, 1, 2)
        return self.score(features), self.box(features)


def _tower(outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(WIDTH, outputs, 1))


def _windows(values: torch.Tensor, side: int) -> torch.Tensor:
    """(1, H, W, channels) -> (windows, positions, channels)."""
    _, height, width, channels = values.shape
    split = values.view(height // side, side, width // side, side, channels)
    return split.permute(0, 2, 1, 3, 4).reshape(-1, side * side, channels)


def _map(windows: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """(windows, positions, channels) -> (1, height, width, channels)."""
    side = int(windows.shape[1] ** 0.5)
    split = windows.view(height // side, width // side, side, side, -1)
    return split.permute(0, 2, 1, 3, 4).reshape(1, height, width, -1)
