"""Garbage collection around captures."""

from __future__ import annotations

import gc
import weakref

import pytest

from multi_dnn_ros.common.memory import gc_paused


class Node:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_inside_the_block_and_everything_behind_it() -> None:
    gc.collect()
    with gc_paused():
        garbage = weakref.ref(Node())
        for _ in range(100_000):  # far more than sets off a collection
            Node()
        assert garbage() is not None
    gc.collect()
    assert garbage() is None
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="capture"), gc_paused():
        raise ValueError("capture failed")
    assert gc.isenabled()
