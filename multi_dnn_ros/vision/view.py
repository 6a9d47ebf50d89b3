"""The part of the image that a DNN sees: all of it or a window. Does not import PyTorch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


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
    image. where: names the parameter in messages.
    """

    crop: tuple[float, float, float, float] | None = None
    where: str = "crop"

    @property
    def is_whole(self) -> bool:
        """Whether the DNN sees the whole image."""
        return self.crop is None

    @property
    def key(self) -> Hashable:
        """Equal for two views with the same window; `where` does not matter."""
        return self.crop

    @property
    def min_size(self) -> tuple[int, int]:
        """(H, W) of the smallest image that contains the window."""
        if self.crop is None or _are_fractions(self.crop):
            return 1, 1
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

    def part_of(self, image: Any) -> Any:
        """The part that the DNN sees of an image (H, W, ...), an array or a tensor, in the same memory."""
        if self.crop is None:
            return image
        window = self.window((image.shape[0], image.shape[1]))
        return image[window.top : window.bottom, window.left : window.right]


#: The whole image.
WHOLE = View()


def _are_fractions(crop: Sequence[float]) -> bool:
    return max(crop) <= 1.0


def _span(begin: float, extent: float, length: int) -> tuple[int, int]:
    """First pixel and number of pixels of a part of an axis. begin, extent: fractions of the axis."""
    first = min(round(begin * length), length - 1)
    return first, max(min(round((begin + extent) * length), length) - first, 1)
