"""DNNs of the package whose network meets a real GPU fault when a file says so; made in the engine process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from illegal_store import illegal_store

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.captured_network import Network
from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.serving.build import build as build_pipeline
from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig

#: Environment variable: a folder. A file there named after a DNN holds the fault that its next frame is to meet.
FOLDER = "MULTI_DNN_TEST_FAULTS"


def build(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """As multi_dnn_ros.serving.build.build."""
    pipeline = build_pipeline(config, progress)
    illegal_store.warmup(torch.float32, grid=(1,))  # compiled here: a fault takes no time of its own
    return replace(pipeline, tasks=tuple(_breakable(task) for task in pipeline.tasks))


def _breakable(task: DnnTask) -> DnnTask:
    """The engine handles a fault before the network as any other."""
    order = Path(os.environ[FOLDER]) / task.name
    return replace(task, networks={1: _Breakable(task.networks[1], order)}, specialize=None, from_host=None)


class _Breakable:
    """A network with the attributes of the one that it stands for."""

    def __init__(self, network: Network, order: Path) -> None:
        self._network = network
        self._order = order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def launch(self, inputs: Tensors) -> torch.Tensor:
        if self._order.exists():
            kind = self._order.read_text()
            self._order.unlink()
            _FAULTS[kind]()
        return self._network.launch(inputs)


def _assert() -> None:
    torch.zeros(4, device="cuda")[torch.tensor([1_000_000], device="cuda")]


def _illegal_address() -> None:
    illegal_store[(1,)](torch.zeros(4, device="cuda"))


_FAULTS = {"assert": _assert, "illegal address": _illegal_address}
