"""Decodes the outputs of one inference to several results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from multi_dnn_ros.decoders.base import TwoParts
from multi_dnn_ros.decoders.window import ResultDecoder
from multi_dnn_ros.vision.results import SeveralResults


class SelectedOutputsDecoder:
    """A decoder that reads only the raw outputs `numbers`, in this order."""

    def __init__(self, decoder: ResultDecoder, numbers: Sequence[int]) -> None:
        self._decoder = decoder
        self._numbers = tuple(numbers)

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return self._decoder(self._selected(outputs), source_size)

    def in_two_parts(self) -> TwoParts | None:
        parts = self._decoder.in_two_parts()
        return None if parts is None else _SelectedParts(parts, self._numbers)

    def _selected(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(outputs[number] for number in self._numbers)


class _SelectedParts:
    def __init__(self, parts: TwoParts, numbers: tuple[int, ...]) -> None:
        self._parts = parts
        self._numbers = numbers
        self.decode = parts.decode

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self._parts.condense([outputs[number] for number in self._numbers])


class SeveralDecoders:
    """Raw outputs -> SeveralResults, one result per decoder. decoders: by name of their results."""

    def __init__(self, decoders: Mapping[str, ResultDecoder]) -> None:
        self._decoders = dict(decoders)

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> SeveralResults:
        return SeveralResults({name: decoder(outputs, source_size) for name, decoder in self._decoders.items()})

    def in_two_parts(self) -> TwoParts | None:
        """The two parts if at least one decoder has them, otherwise None.

        The other decoders read the raw outputs, which condense() returns once.
        """
        parts = {name: decoder.in_two_parts() for name, decoder in self._decoders.items()}
        return _SeveralParts(self._decoders, parts) if any(parts.values()) else None


class _SeveralParts:
    """The two parts of SeveralDecoders.

    condense() returns the raw outputs, if a decoder without parts needs them, then the condensed outputs of each
    decoder that has parts.
    """

    def __init__(self, decoders: Mapping[str, ResultDecoder], parts: Mapping[str, TwoParts | None]) -> None:
        self._decoders = decoders
        self._parts = parts
        self._raw = not all(parts.values())
        self._counts: dict[str, int] = {}

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        found: list[torch.Tensor] = [*outputs] if self._raw else []
        for name, parts in self._parts.items():
            if parts is not None:
                condensed = parts.condense(outputs)
                self._counts[name] = len(condensed)
                found.extend(condensed)
        return tuple(found)

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> SeveralResults:
        begin = len(outputs) - sum(self._counts.values())
        raw, results = outputs[:begin], {}
        for name, parts in self._parts.items():
            if parts is None:
                results[name] = self._decoders[name](raw, source_size)
            else:
                end = begin + self._counts[name]
                results[name] = parts.decode(outputs[begin:end], source_size)
                begin = end
        return SeveralResults(results)
