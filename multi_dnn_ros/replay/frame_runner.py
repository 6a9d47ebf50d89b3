"""Runs the DNNs of a replay by an engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, Drop, Result

#: Called with every result and every drop, from any thread.
Settle = Callable[[Result | Drop], None]


class EngineRunner:
    """Runs frames through an engine in this process. For the parameters and `device`, see Engine."""

    def __init__(
        self, tasks: Sequence[DnnTask], *, workers: int = 2, device: torch.device | None = None, max_failures: int = 5
    ) -> None:
        self._tasks = tuple(tasks)
        self._workers = workers
        self.device = device
        self._max_failures = max_failures
        self._engine: Engine | None = None

    @property
    def streams(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        return [(task.name, task.cameras) for task in self._tasks]

    def start(self, settle: Settle) -> None:
        self._engine = Engine(
            self._tasks, on_result=settle, on_drop=settle, workers=self._workers, device=self.device,
            max_failures=self._max_failures,
        )  # fmt: skip
        self._engine.start()

    def submit(self, frame: Frame, timeout_s: float) -> bool:
        assert self._engine is not None
        return self._engine.submit(frame, timeout_s)

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop(timeout_s=5.0)
