"""Decodes all outputs of a network: several results, each of selected outputs, for a part of the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.decoders.base import Decoder, TwoParts, Values
from multi_dnn_ros.vision.results import SeveralResults
from multi_dnn_ros.vision.view import View, Window

if TYPE_CHECKING:
    from torch import Tensor

#: (result, window, (H, W) of the image) -> the result in pixels of the image; see ResultKind.place.
Place = Callable[[Any, Window, tuple[int, int]], Any]


@dataclass(frozen=True)
class Part:
    """One result: its decoder, the numbers of the raw outputs that it reads (None: all), and how it is placed."""

    decoder: Decoder
    numbers: tuple[int, ...] | None
    place: Place | None

    def selected(self, outputs: Sequence[Values]) -> Sequence[Values]:
        return outputs if self.numbers is None else [outputs[number] for number in self.numbers]


class ResultDecoder:
    """Raw outputs on the CPU and the image's (H, W) -> the result with an empty name, or SeveralResults by their names.

    parts: by name of their results. view: the part of the image that the network sees. Raises OutputError.
    """

    def __init__(self, parts: Mapping[str, Part], view: View) -> None:
        self._parts = dict(parts)
        self._view = view

    def __call__(self, outputs: Sequence[Values], source_size: tuple[int, int]) -> Any:
        steps = {}
        for name, part in self._parts.items():
            steps[name] = part.decoder, part.selected(outputs)
        return self._results(steps, source_size)

    def in_two_parts(self) -> TwoParts | None:
        """The two parts if at least one decoder has them, otherwise None. A decoder without reads the raw outputs,
        which condense() returns, too.
        """
        splits = {name: part.decoder.in_two_parts() for name, part in self._parts.items()}
        if not any(splits.values()):
            return None
        counts: dict[str, int] = {}

        def condense(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            found: list[Tensor] = []
            for name, split in splits.items():
                selected = self._parts[name].selected(outputs)
                condensed = tuple(selected) if split is None else split.condense(selected)
                counts[name] = len(condensed)
                found.extend(condensed)
            return tuple(found)

        def decode(reduced: Sequence[Values], source_size: tuple[int, int]) -> Any:
            steps, begin = {}, 0
            for name, split in splits.items():
                decoder = self._parts[name].decoder if split is None else split.decode
                steps[name] = decoder, reduced[begin : begin + counts[name]]
                begin += counts[name]
            return self._results(steps, source_size)

        return TwoParts(condense, decode)

    def _results(
        self, steps: Mapping[str, tuple[Callable[..., Any], Sequence[Values]]], source_size: tuple[int, int]
    ) -> Any:
        """The result of each decoder for its outputs, placed in the image."""
        window = self._view.window(source_size)
        results = {}
        for name, (decode, outputs) in steps.items():
            result, place = decode(outputs, window.size), self._parts[name].place
            results[name] = result if place is None else place(result, window, source_size)
        return results[""] if "" in results else SeveralResults(results)
