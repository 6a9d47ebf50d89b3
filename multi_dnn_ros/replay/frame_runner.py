"""The interface of a component that runs the DNNs of a replay, and its implementation by an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, Drop, Result

#: Called with every result and every drop, from any thread.
Settle = Callable[[Result | Drop], None]


class FrameRunner(Protocol):
    """Runs every DNN of a frame's camera on the frame; no frame is dropped for being late."""

    @property
    def streams(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Name and cameras of each DNN, in the order of the results."""
        ...

    def start(self, settle: Settle) -> None:
        """Called once, before the first frame."""
        ...

    def submit(self, frame: Frame, timeout_s: float) -> bool:
        """Accept a frame. False: a DNN has been busy with one frame for `timeout_s`."""
        ...

    def finish(self) -> None:
        """Called after the last frame: run the frames that still wait for further ones. Results may arrive later."""
        ...

    def stop(self) -> None:
        """Called once in any case, also after an error; frames without results are dropped."""
        ...


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

    def finish(self) -> None:
        pass  # the engine does not wait for further frames

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop(timeout_s=5.0)
