"""Preprocessing and decoding of a DNN that sees a part of the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from multi_dnn_ros.decoders.base import TwoParts
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.view import View, Window

#: (result, window, (H, W) of the image) -> the result in pixels of the image; see ResultKind.place.
Place = Callable[[Any, Window, tuple[int, int]], Any]


class ResultDecoder(Protocol):
    """Converts raw outputs to the result of a DNN, as :class:`multi_dnn_ros.decoders.base.Decoder` does."""

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        """Raw outputs on the CPU and the image's (H, W) -> result. Raises OutputError."""
        ...

    def in_two_parts(self) -> TwoParts | None:
        """The decoder split in two, if reducing the outputs on the device saves time; None otherwise."""
        ...


class WindowPreprocess:
    """(H, W, 3) uint8 RGB image on any device -> the network's input for `view`, (tiles, 3, h, w)."""

    def __init__(self, preprocess: Preprocess, view: View) -> None:
        self._preprocess = preprocess
        self._view = view

    def __call__(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """Raises ValueError if the window is not inside the image."""
        windows = self._view.windows((image.shape[0], image.shape[1]))
        parts = [
            self._preprocess(image[window.top : window.bottom, window.left : window.right])[0] for window in windows
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts),)


class WindowDecoder:
    """Decodes the outputs for each tile of a view, places the results in the image, and merges them.

    The outputs have a row per tile in their first dimension. merge: (results of several tiles, their windows),
    both in the order of View.windows -> one result.
    """

    def __init__(
        self, decoder: ResultDecoder, view: View, place: Place, merge: Callable[[list[Any], list[Window]], Any]
    ) -> None:
        self._decoder = decoder
        self._view = view
        self._place = place
        self._merge = merge

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        windows = self._view.windows(source_size)
        return self.merged(
            [self._decoder(_row(outputs, number, len(windows)), window.size) for number, window in enumerate(windows)],
            source_size,
        )

    def in_two_parts(self) -> TwoParts | None:
        parts = self._decoder.in_two_parts()
        return None if parts is None else _WindowParts(parts, self._view, self.merged)

    def merged(self, results: list[Any], source_size: tuple[int, int]) -> Any:
        """The results of the tiles as one, in pixels of the image."""
        windows = self._view.windows(source_size)
        placed = [self._place(result, window, source_size) for result, window in zip(results, windows, strict=True)]
        return placed[0] if len(placed) == 1 else self._merge(placed, list(windows))


class _WindowParts:
    """The two parts of a WindowDecoder; the first condenses the outputs of each tile separately."""

    def __init__(self, parts: TwoParts, view: View, merged: Callable[[list[Any], tuple[int, int]], Any]) -> None:
        self._parts = parts
        self._view = view
        self._merged = merged

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        tiles = self._view.tiles
        return tuple(tensor for number in range(tiles) for tensor in self._parts.condense(_row(outputs, number, tiles)))

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        windows = self._view.windows(source_size)
        count = len(outputs) // len(windows)
        return self._merged(
            [
                self._parts.decode(outputs[number * count : (number + 1) * count], window.size)
                for number, window in enumerate(windows)
            ],
            source_size,
        )


def _row(outputs: Sequence[torch.Tensor], number: int, count: int) -> Sequence[torch.Tensor]:
    """The outputs for tile `number` of `count`."""
    return outputs if count == 1 else [output[number : number + 1] for output in outputs]
