"""Pausing garbage collection."""

from __future__ import annotations

import gc
import weakref

import pytest

from multi_dnn_ros.common.garbage_collection import gc_paused


class Node:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_after_the_block_and_not_inside() -> None:
    gc.collect()
    with gc_paused():
        garbage = weakref.ref(Node())
        for _ in range(100_000):  # far more than triggers a collection
            Node()
        assert garbage() is not None
    gc.collect()
    assert garbage() is None
    assert gc.isenabled()


def test_disabled_collection_stays_disabled() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_collection_is_enabled_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="capture"), gc_paused():
        raise ValueError("capture failed")
    assert gc.isenabled()
