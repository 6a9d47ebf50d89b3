"""Restores the frame order of results from concurrent DNNs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, Result


@dataclass
class FrameOutcome:
    """One frame and its results or drops, in the order in which the DNNs were declared."""

    frame: Frame
    dnns: tuple[str, ...]
    ends: dict[str, Result | Drop] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.ends) == len(self.dnns)

    def in_order(self) -> list[Result | Drop]:
        """The results and drops so far, in the order of the DNNs."""
        return [self.ends[dnn] for dnn in self.dnns if dnn in self.ends]


class FrameOrder:
    """Frames are announced by :meth:`expect`; results and drops arrive in any order from any thread and leave in frame
    order.

    The caller bounds the number of frames: the engine's ``submit`` lets a DNN run at most two frames ahead of the
    others.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[FrameOutcome] = deque()
        self._by_frame: dict[int, FrameOutcome] = {}

    def __len__(self) -> int:
        """Number of frames not yet taken."""
        with self._lock:
            return len(self._waiting)

    def expect(self, frame: Frame, dnns: Sequence[str]) -> None:
        """Announce a frame, before any of its results can arrive."""
        outcome = FrameOutcome(frame, tuple(dnns))
        with self._lock:
            self._waiting.append(outcome)
            self._by_frame[id(frame)] = outcome  # the outcome keeps the frame alive, so that its id stays unique

    def settle(self, end: Result | Drop) -> None:
        """Record a result or drop. Raises LookupError if it was not expected, or already recorded."""
        with self._lock:
            outcome = self._by_frame.get(id(end.frame))
            if outcome is None or end.dnn not in outcome.dnns or end.dnn in outcome.ends:
                raise LookupError(f"DNN '{end.dnn}' reported a result or drop for a frame that is not waiting for it")
            outcome.ends[end.dnn] = end
            if outcome.complete:
                self._lock.notify_all()

    def wait_complete(self, timeout_s: float) -> bool:
        """Wait until every frame is complete; False on timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: all(outcome.complete for outcome in self._waiting), timeout_s)

    def take(self, *, all_of_them: bool = False) -> Iterator[FrameOutcome]:
        """Remove and yield the complete frames at the head; with `all_of_them` also the rest, complete or not."""
        while True:
            with self._lock:
                if not self._waiting or not (all_of_them or self._waiting[0].complete):
                    return
                outcome = self._waiting.popleft()
                del self._by_frame[id(outcome.frame)]
            yield outcome
