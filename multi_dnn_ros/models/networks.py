"""The package's own small networks: plain convolutions, batch normalization and ReLU, so that they can be decomposed.

`build` builds one from the name and the arguments in the header of a weights file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvBlock(nn.Sequential):
    """3x3 convolution, batch normalization, ReLU; the size stays, or is halved by stride 2."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016)."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.first = ConvBlock(channels, channels, dilation=dilation)
        self.second = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.second(self.first(x))))


class Encoder(nn.Module):
    """Feature maps at strides 2, 4, 8, ...: one for each entry of `channels`, coarsest last."""

    def __init__(self, channels: Sequence[int], blocks: Sequence[int], dilation: int = 1) -> None:
        """channels: output channels of the stem and of each stage. blocks: number of residual blocks per stage (one
        entry fewer). dilation: dilation of the last stage's blocks.
        """
        super().__init__()
        if len(blocks) != len(channels) - 1:
            raise ValueError(
                f"encoder: {len(channels)} channel counts need {len(channels) - 1} blocks, got {len(blocks)}"
            )
        self.stem = ConvBlock(3, channels[0], stride=2)
        self.stages = nn.ModuleList(
            nn.Sequential(
                ConvBlock(before, after, stride=2),
                *(ResidualBlock(after, dilation if k == len(blocks) - 1 else 1) for _ in range(count)),
            )
            for k, (before, after, count) in enumerate(zip(channels[:-1], channels[1:], blocks, strict=True))
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        maps = [x]
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class LaneNet(nn.Module):
    """Which pixels belong to a lane line.

    forward: (B, 3, h, w) float, RGB, 0..1; h and w multiples of 16 -> logits (B, 1, h, w).
    An encoder to stride 16 with dilated blocks at its end (a line is recognized by its whole length), and a decoder
    that adds the finer maps one by one; the logits are computed at half size and upsampled.
    """

    def __init__(
        self, channels: Sequence[int] = (16, 32, 64, 96), blocks: Sequence[int] = (1, 1, 2), decoder: int = 32
    ) -> None:
        super().__init__()
        self.encoder = Encoder(channels, blocks, dilation=2)
        self.lateral = nn.ModuleList(nn.Conv2d(c, decoder, 1) for c in channels)
        self.merge = nn.ModuleList(ConvBlock(decoder, decoder) for _ in channels[:-1])
        self.head = nn.Conv2d(decoder, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.encoder(x)
        y = self.lateral[-1](maps[-1])
        for k in range(len(self.merge) - 1, -1, -1):
            y = F.interpolate(y, scale_factor=2.0, mode="nearest") + self.lateral[k](maps[k])
            y = self.merge[k](y)
        return F.interpolate(self.head(y), scale_factor=2.0, mode="bilinear", align_corners=False)


class DetectorNet(nn.Module):
    """Boxes and class probabilities at every cell of three grids, without anchors.

    forward: (B, 3, h, w) float, RGB, 0..1; h and w multiples of 32 -> (B, 4 + classes, N)
    float32 with N = the cells at strides 8, 16 and 32, row by row, finest first: cx, cy, w, h in input pixels, then the
    classes' probabilities. The layout is that of the YOLO exports, so the same decoder reads both.
    """

    STRIDES = (8, 16, 32)
    points: Tensor
    scales: Tensor

    def __init__(
        self,
        classes: int,
        input_size: Sequence[int],
        channels: Sequence[int] = (16, 32, 64, 80, 88),
        blocks: Sequence[int] = (1, 2, 1, 1),
        neck: int = 48,
    ) -> None:
        """input_size: (width, height), which defines the grids."""
        super().__init__()
        width, height = input_size
        if width % 32 or height % 32:
            raise ValueError(f"detector input {width}x{height}: both sides must be multiples of 32")
        self.classes = classes
        self.encoder = Encoder(channels, blocks)
        self.lateral = nn.ModuleList(nn.Conv2d(c, neck, 1) for c in channels[-3:])
        self.merge = nn.ModuleList(ConvBlock(neck, neck) for _ in self.STRIDES)
        self.tower = ConvBlock(neck, neck)  # shared by the three grids
        self.box = nn.Conv2d(neck, 4, 3, padding=1)
        self.score = nn.Conv2d(neck, classes, 3, padding=1)
        nn.init.constant_(self.score.bias, -4.6)  # type: ignore[arg-type]  # 0.01: objects are rare (Lin et al. 2017)
        nn.init.constant_(self.box.bias, 0.7)  # type: ignore[arg-type]
        points, scales = cells(width, height, self.STRIDES)
        self.register_buffer("points", points.T[None].contiguous(), persistent=False)
        self.register_buffer("scales", scales[None, None].contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.encoder(x)[-3:]
        y = self.lateral[2](maps[2])
        levels = [self.merge[2](y)]
        for k in (1, 0):
            y = F.interpolate(levels[0], scale_factor=2.0, mode="nearest") + self.lateral[k](maps[k])
            levels.insert(0, self.merge[k](y))
        towers = [self.tower(level) for level in levels]
        sides = torch.cat([self.box(tower).flatten(2) for tower in towers], dim=2).float()
        scores = torch.cat([self.score(tower).flatten(2) for tower in towers], dim=2).float().sigmoid()
        # Distances from the cell's centre to the four sides, in strides; always positive.
        left, top, right, bottom = (F.softplus(sides) * self.scales).split(1, dim=1)
        cx = self.points[:, :1] + (right - left) / 2
        cy = self.points[:, 1:] + (bottom - top) / 2
        return torch.cat([cx, cy, left + right, top + bottom, scores], dim=1)


def cells(width: int, height: int, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Centres (N, 2) of all grid cells in input pixels, x then y, and the stride (N,) of each; row by row."""
    points, scales = [], []
    for stride in strides:
        ys, xs = torch.meshgrid(torch.arange(height // stride), torch.arange(width // stride), indexing="ij")
        points.append((torch.stack([xs.reshape(-1), ys.reshape(-1)], dim=1) + 0.5) * stride)
        scales.append(torch.full((len(points[-1]),), float(stride)))
    return torch.cat(points).float(), torch.cat(scales)


ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {"LaneNet": LaneNet, "DetectorNet": DetectorNet}


def build(architecture: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The network `architecture` with keyword `arguments`, untrained."""
    return ARCHITECTURES[architecture](**arguments)
