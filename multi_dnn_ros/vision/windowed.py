"""Preprocessing and decoding of a DNN that sees a part of the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from multi_dnn_ros.vision.decoders.base import TwoParts
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.view import View, Window

#: (result, window, (H, W) of the image) -> the result in pixels of the image; see ResultKind.place.
Place = Callable[[Any, Window, tuple[int, int]], Any]


class ResultDecoder(Protocol):
    """As :class:`multi_dnn_ros.vision.decoders.base.Decoder`, which is one: raw outputs to the result of a DNN."""

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        """Raw outputs on the CPU and the image's (H, W) -> result. Raises OutputError."""
        ...

    def in_two_parts(self) -> TwoParts | None:
        """The decoder split in two, if reducing the outputs on the device saves time; None otherwise."""
        ...


class WindowPreprocess:
    """(H, W, 3) uint8 RGB image on any device -> the network's input of the part that `view` describes."""

    def __init__(self, preprocess: Preprocess, view: View) -> None:
        self._preprocess = preprocess
        self._view = view

    def __call__(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """Raises ValueError if the window is not inside the image."""
        (window,) = self._view.windows((image.shape[0], image.shape[1]))
        return self._preprocess(image[window.top : window.bottom, window.left : window.right])


class WindowDecoder:
    """Decodes the outputs for a window, and places the result in the image."""

    def __init__(self, decoder: ResultDecoder, view: View, place: Place) -> None:
        self._decoder = decoder
        self._view = view
        self._place = place

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return self._placed(self._decoder, outputs, source_size)

    def in_two_parts(self) -> TwoParts | None:
        parts = self._decoder.in_two_parts()
        return None if parts is None else _WindowParts(parts, self._placed)

    def _placed(
        self,
        decode: Callable[[Sequence[torch.Tensor], tuple[int, int]], Any],
        outputs: Sequence[torch.Tensor],
        source_size: tuple[int, int],
    ) -> Any:
        (window,) = self._view.windows(source_size)
        return self._place(decode(outputs, window.size), window, source_size)


class _WindowParts:
    """The two parts of a WindowDecoder: the window matters only to the second."""

    def __init__(self, parts: TwoParts, placed: Callable[..., Any]) -> None:
        self._parts = parts
        self._placed = placed
        self.condense = parts.condense

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return self._placed(self._parts.decode, outputs, source_size)
