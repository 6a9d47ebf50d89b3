"""Fixtures that start engines and stop them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from engine_fakes import CountingEngine, Recorder

from multi_dnn_ros.engine import DnnTask


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def start(recorder: Recorder) -> Iterator[Callable[..., CountingEngine]]:
    """Start engines that are stopped after the test."""
    engines: list[CountingEngine] = []

    def make(*tasks: DnnTask, **kwargs: object) -> CountingEngine:
        engines.append(CountingEngine(tasks, **{**recorder.callbacks(), **kwargs}))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop(2.0)
