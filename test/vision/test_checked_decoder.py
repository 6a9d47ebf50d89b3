"""The checks of another package's decoder, in one part and in two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.vision.checked_decoder import CheckedDecoder
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import OutputError

KIND = ResultKind("number", float, ())
OUTPUTS, SIZE = (torch.ones(1),), (480, 640)


class Parts:
    """A decoder and its two parts."""

    def __init__(self, decode: Callable[[], Any], *, in_parts: bool = True) -> None:
        self._decode = decode
        self._in_parts = in_parts

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return self._decode()

    def in_two_parts(self) -> Parts | None:
        return self if self._in_parts else None

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(outputs)

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return self._decode()


def raising(error: BaseException) -> Callable[[], Any]:
    def decode() -> Any:
        raise error

    return decode


def both_ways(decode: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Calls that decode in one part and in two."""
    checked = CheckedDecoder(Parts(decode), "numbers", KIND)
    parts = checked.in_two_parts()
    assert parts is not None
    assert parts.condense(OUTPUTS) == OUTPUTS
    return [lambda: checked(OUTPUTS, SIZE), lambda: parts.decode(OUTPUTS, SIZE)]


def test_a_result_of_the_kind_is_returned() -> None:
    assert [call() for call in both_ways(lambda: 2.5)] == [2.5, 2.5]
    assert CheckedDecoder(Parts(lambda: 2.5, in_parts=False), "numbers", KIND).in_two_parts() is None


@pytest.mark.parametrize(
    ("decode", "error", "message"),
    [
        (
            lambda: "text",
            ExtensionError,
            r"^decoder 'numbers': decoding returned a str; expected a float \(result kind",
        ),
        (raising(IndexError("row 7")), ExtensionError, "^decoder 'numbers': decoding raised IndexError: row 7$"),
        (raising(SystemExit(2)), ExtensionError, "^decoder 'numbers': decoding raised SystemExit: 2$"),
        (raising(OutputError("three outputs")), OutputError, "^three outputs$"),
    ],
)
def test_another_result_and_an_error_are_named(decode: Callable[[], Any], error: type[Exception], message: str) -> None:
    for call in both_ways(decode):
        with pytest.raises(error, match=message):
            call()
