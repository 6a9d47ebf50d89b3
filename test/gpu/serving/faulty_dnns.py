"""DNNs of the package whose first job meets a real GPU fault when a file says so; made in the engine process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from illegal_store import illegal_store

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.pipeline.build import build as build_pipeline
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig

#: Environment variable: a folder. A file there named after a DNN holds the fault that its next job is to meet.
FOLDER = "MULTI_DNN_TEST_FAULTS"


def build(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """As multi_dnn_ros.pipeline.build.build."""
    pipeline = build_pipeline(config, progress)
    illegal_store.warmup(torch.float32, grid=(1,))  # compiled here: a fault takes no time of its own
    return replace(pipeline, tasks=tuple(_breakable(task) for task in pipeline.tasks))


def _breakable(task: DnnTask) -> DnnTask:
    """Without single_launch: the first job runs by itself, and the engine handles its fault as any other."""
    order = Path(os.environ[FOLDER]) / task.name
    first = task.stages[0]
    return replace(task, stages=(_Breakable(first, order), *task.stages[1:]), single_launch={}, specialize=None)


class _Breakable:
    """A stage with the attributes of the one that it stands for."""

    def __init__(self, stage: Stage, order: Path) -> None:
        self._stage = stage
        self._order = order

    def __getattr__(self, name: str) -> object:
        return getattr(self._stage, name)

    def __call__(self, carried: Tensors) -> Tensors:
        if self._order.exists():
            kind = self._order.read_text()
            self._order.unlink()
            _FAULTS[kind]()
        return self._stage(carried)


def _assert() -> None:
    torch.zeros(4, device="cuda")[torch.tensor([1_000_000], device="cuda")]


def _illegal_address() -> None:
    illegal_store[(1,)](torch.zeros(4, device="cuda"))


_FAULTS = {"assert": _assert, "illegal address": _illegal_address}
