"""Fixtures that start engines and stop them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from engine_fakes import CountingEngine, Recorder
from torch import nn

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


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of an exported detector with two layers."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.Flatten(2)).eval()
    file = tmp_path_factory.mktemp("exported") / "small.pt2"
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 32, 32),)), file)
    return str(file)
