"""A host without an engine, for the thread of a camera: the test answers the offered frames."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing
from multi_dnn_ros.serving.ledger import Ledger

WAIT_S = 60.0  # timeout of every wait


class FakeClock:
    """A clock in nanoseconds that the test advances."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


class FakeBuffer:
    """Memory for one image; tells the host when it is released."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        return np.zeros((height, width, 3), np.uint8)

    def release(self) -> None:
        self._host.free.release()


class FakeHost:
    """The part of a Host that decoding uses. buffers: their number."""

    def __init__(self, buffers: int = 8) -> None:
        self.free = threading.BoundedSemaphore(buffers)  # a buffer that is released twice raises
        self.changed = threading.Condition()
        self.serving = True
        self.offered: list[tuple[int, Frame]] = []
        self.recipients: list[tuple[str, ...]] = []

    def serves(self, dnns: tuple[str, ...]) -> bool:
        return self.serving

    def buffer(self, camera: str, timeout_s: float) -> FakeBuffer | None:
        return FakeBuffer(self) if self.free.acquire(timeout=timeout_s) else None

    def offer(self, ledger: Ledger, frame: Frame, buffer: Any, dnns: tuple[str, ...]) -> None:
        self.ledger = ledger
        number, _ = ledger.open(frame, buffer, dnns, lambda dnn: None)
        with self.changed:
            self.offered.append((number, frame))
            self.recipients.append(tuple(dnns))
            self.changed.notify_all()

    # -- called by the test

    def wait_offered(self, count: int) -> list[Any]:
        """Wait for `count` offered frames. Returns their contexts."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.offered) >= count, WAIT_S), self.offered
        return [frame.context for _, frame in self.offered]

    def answer(self, dnn: str, index: int = -1, finished_ns: int = 0) -> None:
        """Answer an offered frame, by its index, with a result."""
        number, frame = self.offered[index]
        self.ledger.result(number, dnn, "output", Timing(frame.received_ns, 0, finished_ns, 0, 0, 0, 0))


class Ends:
    """Collects results, drops and failures from the callbacks of the ledger."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.drops: list[Drop] = []
        self.failures: list[Failure] = []
        self.changed = threading.Condition()

    def callbacks(self) -> Callbacks:
        return Callbacks(self._add(self.results), self._add(self.drops), self._add(self.failures))

    def _add(self, kind: list) -> Callable[[Any], None]:
        def add(item: Any) -> None:
            with self.changed:
                kind.append(item)
                self.changed.notify_all()

        return add

    def wait(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), "the condition did not come true in time"

    def lost(self) -> list[tuple[Any, str, DropReason]]:
        """Context, DNN and reason of each drop."""
        return [(drop.frame.context, drop.dnn, drop.reason) for drop in self.drops]
