"""Checks the results of a decoder of another package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extension_calls import extension_errors, raised_text
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.vision.decoders.base import TwoParts
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import OutputError
from multi_dnn_ros.vision.windowed import ResultDecoder

_Decode = Callable[[Sequence[torch.Tensor], tuple[int, int]], Any]


class CheckedDecoder:
    """A decoder whose errors name it, and whose results are of its result kind: one isinstance() per result.

    name: of the decoder. Calls raise OutputError as the decoder does, and ExtensionError for whatever else it raises
    and for a result of another type.
    """

    def __init__(self, decoder: ResultDecoder, name: str, kind: ResultKind) -> None:
        self._decoder = decoder
        self._name = name
        self._kind = kind

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return _checked(self._decoder, self._name, self._kind, outputs, source_size)

    def in_two_parts(self) -> TwoParts | None:
        with extension_errors(extensions.DECODERS, self._name, "in_two_parts"):
            parts = self._decoder.in_two_parts()
        return None if parts is None else _CheckedParts(parts, self._name, self._kind)


class _CheckedParts:
    """The two parts of a CheckedDecoder."""

    def __init__(self, parts: TwoParts, name: str, kind: ResultKind) -> None:
        self._parts = parts
        self._name = name
        self._kind = kind

    def condense(self, outputs: Sequence[torch.Tensor]) -> Any:
        return _called(self._name, "condensing", self._parts.condense, outputs)

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return _checked(self._parts.decode, self._name, self._kind, outputs, source_size)


def _called(name: str, step: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the decoder returns. Not extension_errors(), whose generator and log line would cost time per
    frame.
    """
    try:
        return function(*arguments)
    except OutputError:
        raise
    except (Exception, SystemExit) as error:
        raise ExtensionError(raised_text(extensions.DECODERS, name, step, error)) from error


def _checked(
    decode: _Decode, name: str, kind: ResultKind, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]
) -> Any:
    result = _called(name, "decoding", decode, outputs, source_size)
    if not isinstance(result, kind.type):
        decoder = extensions.display_name(extensions.DECODERS, name)
        found, expected = type(result).__name__, kind.type.__name__
        raise ExtensionError(f"{decoder}: decoding returned a {found}; expected a {expected} (result kind {kind.name})")
    return result
