"""Converts a camera image to a network's input, and coordinates back to the image. On a GPU: preprocess_gpu."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

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


@cache
def shrink_filter(factor: float) -> npt.NDArray[np.float32]:
    """The low-pass filter along one axis before a bilinear resize that makes it `factor` times shorter; [1]: none.

    Both together are the triangle of half-width `factor` by which Pillow and PyTorch resize (antialias=True): exactly
    for whole factors, otherwise with its variance, which is (factor^2 - 1) / 6 for the filter plus 1/6 for the resize.
    OpenCV takes a quarter of Pillow's time for it.
    """
    whole = max(1, math.floor(factor))
    share = max(0.0, factor * factor - whole * whole) / (2 * whole + 1)  # of the triangle for the next whole factor
    triangle, wider = np.bartlett(2 * whole + 1), np.bartlett(2 * whole + 3)[1:-1]
    weights = (1.0 - share) / whole * triangle + share / (whole + 1) * wider
    weights = np.rint(weights * 256.0) / 256.0  # as OpenCV may do for 8-bit images
    weights[whole] += 1.0 - weights.sum()
    return np.trim_zeros(weights).astype(np.float32)


class Preprocess:
    """(H, W, 3) uint8 RGB image -> (1, 3, height, width) float32, the network's input.

    width, height: size of the network input. fit: `stretch` fills it, `letterbox` keeps the aspect ratio and pads. bgr:
    the network expects blue first. mean, std: per channel in the network's order: (value / 255 - mean) / std.
    antialias: low-pass filter when downscaling, as PIL and torchvision's transforms do; off for networks that were
    trained without it, as with cv2 and by torchvision's detectors. centered: letterbox puts the image in the middle,
    otherwise in the upper left corner. pad: grey level 0..1 of the padding before normalization; None: the mean, so
    that the normalized padding is 0.

    The resize is bilinear and rounds to whole grey levels. On real images the low-pass filter differs from Pillow's by
    less than a grey level on average.
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

    def __call__(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """image: (H, W, 3) uint8. Raises ValueError for anything else."""
        self.check_image(image.shape, str(image.dtype))
        geometry = self.geometry((image.shape[0], image.shape[1]))
        values = np.empty((1, 3, self.height, self.width), np.float32)
        tables, padding = self._tables
        if (geometry.height, geometry.width) != (self.height, self.width):
            values[...] = padding.reshape(1, 3, 1, 1)
        inside = values[0, :, geometry.top : geometry.top + geometry.height, geometry.left :][..., : geometry.width]
        planes = cv2.split(self._resized(image, geometry))
        # OpenCV converts single planes ten times as fast as pixels, whose layout would have to be changed afterwards.
        for plane, table, channel in zip(planes[::-1] if self.bgr else planes, tables, inside, strict=True):
            written = cv2.LUT(plane, table, dst=channel)
            assert np.may_share_memory(written, channel)
        return values

    def _resized(self, image: npt.NDArray[np.uint8], geometry: Geometry) -> npt.NDArray[np.uint8]:
        size = (geometry.width, geometry.height)
        if size == (image.shape[1], image.shape[0]):
            return image
        if self.antialias:
            across, down = (shrink_filter(whole / part) for whole, part in zip(image.shape[1::-1], size, strict=True))
            if len(across) > 1 or len(down) > 1:
                image = np.asarray(cv2.sepFilter2D(image, -1, across, down), np.uint8)
        return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_LINEAR), np.uint8)

    def check_image(self, shape: Sequence[int], dtype: str) -> None:
        """Raise ValueError unless an image of this shape and type can be preprocessed."""
        if len(shape) != 3 or shape[2] != 3 or not math.prod(shape) or not dtype.endswith("uint8"):
            raise ValueError(f"image of shape {tuple(shape)} and type {dtype}: must be (H, W, 3) uint8")

    def constants(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """scale, offset and padding, each (3,): a grey level g of a channel becomes offset + g * scale."""
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        pad = mean if self.pad is None else np.full_like(mean, self.pad)
        return 1.0 / (np.float32(255.0) * std), -mean / std, (pad - mean) / std

    @cached_property
    def _tables(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(3, 1, 256) what each grey level of each channel becomes, and (3,) the padding."""
        scale, offset, padding = self.constants()
        tables = offset[:, None] + scale[:, None] * np.arange(256, dtype=np.float32)
        return np.asarray(tables[:, None], np.float32), padding
