"""Decoders for a selection of the outputs, for several results of one network, and for a part of the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from multi_dnn_ros.decoders.arrays import Values
from multi_dnn_ros.decoders.base import TwoParts
from multi_dnn_ros.vision.results import SeveralResults
from multi_dnn_ros.vision.view import View, Window

if TYPE_CHECKING:
    from torch import Tensor

#: (result, window, (H, W) of the image) -> the result in pixels of the image; see ResultKind.place.
Place = Callable[[Any, Window, tuple[int, int]], Any]


class ResultDecoder(Protocol):
    """Converts raw outputs to the result of a DNN, as :class:`multi_dnn_ros.decoders.base.Decoder` does."""

    def __call__(self, outputs: Sequence[Values], source_size: tuple[int, int]) -> Any:
        """Raw outputs on the CPU and the image's (H, W) -> result. Raises OutputError."""
        ...

    def in_two_parts(self) -> TwoParts | None:
        """The decoder split in two, if reducing the outputs on the device saves time; None otherwise."""
        ...


class SelectedOutputsDecoder:
    """A decoder that reads only the raw outputs `numbers`, in this order."""

    def __init__(self, decoder: ResultDecoder, numbers: Sequence[int]) -> None:
        self._decoder = decoder
        self._numbers = tuple(numbers)

    def __call__(self, outputs: Sequence[Values], source_size: tuple[int, int]) -> Any:
        return self._decoder(self._selected(outputs), source_size)

    def in_two_parts(self) -> TwoParts | None:
        parts = self._decoder.in_two_parts()
        return parts and TwoParts(lambda outputs: parts.condense(self._selected(outputs)), parts.decode)

    def _selected(self, outputs: Sequence[Values]) -> tuple[Values, ...]:
        return tuple(outputs[number] for number in self._numbers)


class WindowDecoder:
    """Decodes the outputs for a part of the image, and places the result in the image."""

    def __init__(self, decoder: ResultDecoder, view: View, place: Place) -> None:
        self._decoder = decoder
        self._view = view
        self._place = place

    def __call__(self, outputs: Sequence[Values], source_size: tuple[int, int]) -> Any:
        return self._placed(self._decoder, outputs, source_size)

    def in_two_parts(self) -> TwoParts | None:
        parts = self._decoder.in_two_parts()
        return parts and TwoParts(parts.condense, lambda outputs, size: self._placed(parts.decode, outputs, size))

    def _placed(self, decode: Callable[..., Any], outputs: Sequence[Values], source_size: tuple[int, int]) -> Any:
        window = self._view.window(source_size)
        return self._place(decode(outputs, window.size), window, source_size)


class SeveralDecoders:
    """Raw outputs -> SeveralResults, one result per decoder. decoders: by name of their results."""

    def __init__(self, decoders: Mapping[str, ResultDecoder]) -> None:
        self._decoders = dict(decoders)

    def __call__(self, outputs: Sequence[Values], source_size: tuple[int, int]) -> SeveralResults:
        return SeveralResults({name: decoder(outputs, source_size) for name, decoder in self._decoders.items()})

    def in_two_parts(self) -> TwoParts | None:
        """The two parts if at least one decoder has them, otherwise None. A decoder without reads the raw outputs,
        which condense() returns, too.
        """
        parts = {name: decoder.in_two_parts() for name, decoder in self._decoders.items()}
        if not any(parts.values()):
            return None
        counts: dict[str, int] = {}

        def condense(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            found: list[Tensor] = []
            for name, each in parts.items():
                condensed = each.condense(outputs) if each is not None else tuple(outputs)
                counts[name] = len(condensed)
                found.extend(condensed)
            return tuple(found)

        def decode(outputs: Sequence[Values], source_size: tuple[int, int]) -> SeveralResults:
            results, begin = {}, 0
            for name, each in parts.items():
                decoder = each.decode if each is not None else self._decoders[name]
                results[name] = decoder(outputs[begin : begin + counts[name]], source_size)
                begin += counts[name]
            return SeveralResults(results)

        return TwoParts(condense, decode)
