"""The part of the image that a DNN sees: a window, as one input or as a grid of tiles. Does not import PyTorch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Window(NamedTuple):
    """A rectangle of an image, in whole pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.height, self.width

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height


@dataclass(frozen=True)
class View:
    """What a DNN sees of an image.

    crop: x, y, width and height of the window, as fractions of the image (all at most 1) or in pixels; None: the whole
    image. columns, rows: number of tiles of the window. overlap: share of a tile that its neighbour also shows.
    where: names the parameter in messages.
    """

    crop: tuple[float, float, float, float] | None = None
    columns: int = 1
    rows: int = 1
    overlap: float = 0.0
    where: str = "crop"

    @property
    def is_whole(self) -> bool:
        """Whether the DNN sees the whole image as one input."""
        return self.crop is None and self.tiles == 1

    @property
    def key(self) -> Hashable:
        """Equal for two views with the same windows; `where`, and the overlap of a single tile, do not matter."""
        return self.crop, self.columns, self.rows, self.overlap if self.tiles > 1 else 0.0

    @property
    def tiles(self) -> int:
        """Number of inputs of the network per image."""
        return self.columns * self.rows

    @property
    def min_size(self) -> tuple[int, int]:
        """(H, W) of the smallest image that contains the window and has a pixel for every tile."""
        if self.crop is None or _are_fractions(self.crop):
            return self.rows, self.columns
        x, y, width, height = (round(value) for value in self.crop)
        return y + height, x + width

    def enlarge_to_min(self, size: tuple[int, int]) -> tuple[int, int]:
        """`size`, (H, W), enlarged to :attr:`min_size` where it is smaller."""
        minimum = self.min_size
        return max(size[0], minimum[0]), max(size[1], minimum[1])

    def window(self, size: tuple[int, int]) -> Window:
        """The window in an image of (H, W) pixels, at least one pixel in size.

        Raises ValueError, which names the parameter, if a window in pixels is not inside the image.
        """
        height, width = size
        if self.crop is None:
            return Window(0, 0, width, height)
        if _are_fractions(self.crop):
            (left, across), (top, down) = (
                _span(self.crop[axis], self.crop[axis + 2], length) for axis, length in ((0, width), (1, height))
            )
            return Window(left, top, across, down)
        found = Window(*(round(value) for value in self.crop))
        if found.right > width or found.bottom > height:
            raise ValueError(
                f"{self.where} is [{', '.join(f'{value:g}' for value in self.crop)}], which ends at {found.right} x "
                f"{found.bottom}; the image has {width} x {height} pixels"
            )
        return found

    def windows(self, size: tuple[int, int]) -> tuple[Window, ...]:
        """The tiles of an image of (H, W), all of one size: row by row, left to right. Raises as :meth:`window`."""
        whole = self.window(size)
        if self.tiles == 1:
            return (whole,)
        lefts, width = _starts(whole.width, self.columns, self.overlap)
        tops, height = _starts(whole.height, self.rows, self.overlap)
        return tuple(Window(whole.left + left, whole.top + top, width, height) for top in tops for left in lefts)


#: The whole image, as one input.
WHOLE = View()


def _are_fractions(crop: Sequence[float]) -> bool:
    return max(crop) <= 1.0


def _span(begin: float, extent: float, length: int) -> tuple[int, int]:
    """First pixel and number of pixels of a part of an axis. begin, extent: fractions of the axis."""
    first = min(round(begin * length), length - 1)
    return first, max(min(round((begin + extent) * length), length) - first, 1)


def _starts(length: int, count: int, overlap: float) -> tuple[list[int], int]:
    """First pixels and common length of `count` parts that cover an axis of `length` pixels."""
    part = min(math.ceil(length / (count - (count - 1) * overlap)), length)
    return [round(number * (length - part) / max(count - 1, 1)) for number in range(count)], part
