"""The errors behind an error, in the ways in which Python connects them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multi_dnn_ros.common.error_causes import error_and_causes

FIRST = OSError("the cable is loose")


def raise_from() -> None:
    try:
        raise FIRST
    except OSError as error:
        raise ValueError("no image") from error


def raise_while_handling() -> None:
    try:
        raise FIRST
    except OSError:
        raise ValueError("no image")  # noqa: B904, the case that is tested


def raise_from_none() -> None:
    try:
        raise FIRST
    except OSError as error:
        raise ValueError(f"no image: {error}") from None


@pytest.mark.parametrize("fail", [raise_from, raise_while_handling, raise_from_none])
def test_the_cause_of_an_error_follows_it(fail: Callable[[], None]) -> None:
    with pytest.raises(ValueError, match="no image") as raised:
        fail()
    assert [*error_and_causes(raised.value)] == [raised.value, FIRST]


def test_a_named_cause_precedes_the_error_that_was_being_handled() -> None:
    raised, named = ValueError("no image"), KeyError("camera")
    raised.__context__, raised.__cause__ = FIRST, named
    assert [*error_and_causes(raised)] == [raised, named]


def test_all_causes_are_found_in_their_order() -> None:
    errors = [ValueError(str(number)) for number in range(4)]
    errors[0].__cause__ = errors[1]
    errors[1].__context__ = errors[2]
    errors[2].__cause__ = errors[3]
    assert [*error_and_causes(errors[0])] == errors


def test_errors_that_name_each_other_as_causes_come_once() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__context__ = other, one
    assert [*error_and_causes(one)] == [one, other]
    one.__cause__ = one
    assert [*error_and_causes(one)] == [one]


def test_no_error_has_no_causes() -> None:
    assert [*error_and_causes(None)] == []
