"""Converts a camera image to a network's input, and coordinates back to the image."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from multi_dnn_ros.vision.view import View

ResizeMode = Literal["stretch", "letterbox"]


@dataclass(frozen=True)
class Geometry:
    """Position of a source image in the network input: x = u * scale_x + left, y = v * scale_y + top.

    u, v: continuous source coordinates (0 is the left or upper edge of the first pixel); x, y: likewise in the input.
    width, height: size of the image inside the input, in pixels; the rest is padding.
    """

    scale_x: float
    scale_y: float
    left: int
    top: int
    width: int
    height: int

    def to_source(self, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Boxes (N, 4) float32 x1, y1, x2, y2 in input pixels -> the same in source pixels."""
        offset = np.array([self.left, self.top, self.left, self.top], np.float32)
        scale = np.array([self.scale_x, self.scale_y, self.scale_x, self.scale_y], np.float32)
        return (boxes - offset) / scale


class Preprocess:
    """(H, W, 3) uint8 RGB image on any device -> ((1, 3, height, width) float32,) on the same device.

    width, height: size of the network input. fit: `stretch` fills it, `letterbox` keeps the aspect ratio and pads. bgr:
    the network expects blue first. mean, std: per channel in the network's order: (value / 255 - mean) / std.
    antialias: low-pass filter when downscaling; off for networks that were trained without it (torchvision's
    detectors). centered: letterbox puts the image in the middle, otherwise in the upper left corner. pad: grey level
    0..1 of the padding before normalization; None: the mean, so that the normalized padding is 0.

    The resize is bilinear. On the CPU with antialias it runs on uint8 and rounds to whole grey levels, as PIL and cv2
    do; this is several times faster than on float.
    """

    def __init__(
        self,
        width: int,
        height: int,
        *,
        fit: ResizeMode = "stretch",
        bgr: bool = False,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        antialias: bool = True,
        centered: bool = True,
        pad: float | None = 114 / 255,
    ) -> None:
        if len(mean) != 3 or len(std) != 3:
            raise ValueError(f"mean = {list(mean)}, std = {list(std)}: each needs one value for each of 3 channels")
        if not all(math.isfinite(value) for value in (*mean, *std)) or min(std) <= 0.0:
            raise ValueError(f"mean = {list(mean)}, std = {list(std)}: must be finite, std above 0")
        self.width = width
        self.height = height
        self.fit = fit
        self.bgr = bgr
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.antialias = antialias
        self.centered = centered
        self.pad = pad
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    @property
    def key(self) -> Hashable:
        """Equal for two objects that return the same input for every image."""
        size, colors = (self.width, self.height), (self.bgr, self.mean, self.std)
        return size, self.fit, colors, self.antialias, self.centered, self.pad

    def geometry(self, source_size: tuple[int, int]) -> Geometry:
        """Position of an image of (H, W) pixels in the input."""
        source_height, source_width = source_size
        if self.fit == "stretch":
            return Geometry(self.width / source_width, self.height / source_height, 0, 0, self.width, self.height)
        scale = min(self.width / source_width, self.height / source_height)
        width = min(self.width, max(1, round(source_width * scale)))
        height = min(self.height, max(1, round(source_height * scale)))
        left = (self.width - width) // 2 if self.centered else 0
        top = (self.height - height) // 2 if self.centered else 0
        return Geometry(width / source_width, height / source_height, left, top, width, height)

    def __call__(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """image: (H, W, 3) uint8. Raises ValueError for anything else."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != torch.uint8 or not image.numel():
            raise ValueError(f"image of shape {tuple(image.shape)} and type {image.dtype}: must be (H, W, 3) uint8")
        geometry = self.geometry((image.shape[0], image.shape[1]))
        pixels = image.permute(2, 0, 1)[None]  # channels_last in memory, as the fast uint8 resize requires
        if (geometry.height, geometry.width) != tuple(pixels.shape[2:]):
            if not (self.antialias and image.device.type == "cpu"):
                pixels = pixels.float()
            pixels = F.interpolate(
                pixels,
                (geometry.height, geometry.width),
                mode="bilinear",
                align_corners=False,
                antialias=self.antialias,
            )
        scale, offset, padding = self._constants_on(image.device)
        pixels = pixels.flip(1) if self.bgr else pixels
        values = torch.addcmul(offset, pixels.to(torch.float32, memory_format=torch.contiguous_format), scale)
        if (geometry.height, geometry.width) == (self.height, self.width):
            return (values,)
        padded = padding.expand(1, 3, self.height, self.width).clone()
        rows = slice(geometry.top, geometry.top + geometry.height)
        columns = slice(geometry.left, geometry.left + geometry.width)
        padded[:, :, rows, columns] = values
        return (padded,)

    def _constants_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if device not in self._constants:
            mean, std = torch.tensor(self.mean).view(1, 3, 1, 1), torch.tensor(self.std).view(1, 3, 1, 1)
            pad = mean if self.pad is None else torch.full_like(mean, self.pad)
            constants = (1.0 / (255.0 * std), -mean / std, (pad - mean) / std)
            self._constants[device] = (constants[0].to(device), constants[1].to(device), constants[2].to(device))
        return self._constants[device]


class WindowPreprocess:
    """(H, W, 3) uint8 RGB image on any device -> the network's input, made from the part of the image that it sees."""

    def __init__(self, preprocess: Preprocess, view: View) -> None:
        self._preprocess = preprocess
        self._view = view

    def __call__(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """Raises ValueError if the window is not inside the image."""
        window = self._view.window((image.shape[0], image.shape[1]))
        return self._preprocess(image[window.top : window.bottom, window.left : window.right])
