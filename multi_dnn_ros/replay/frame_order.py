"""Results of concurrent DNNs, put back into the order of their frames."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, Result


@dataclass
class FrameOutcome:
    """One frame and what every DNN of its camera made of it, in the order in which the DNNs were declared."""

    frame: Frame
    dnns: tuple[str, ...]
    ends: dict[str, Result | Drop] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.ends) == len(self.dnns)

    def in_order(self) -> list[Result | Drop]:
        """What has come in so far, by DNN."""
        return [self.ends[dnn] for dnn in self.dnns if dnn in self.ends]


class FrameOrder:
    """Frames go in by :meth:`expect`, their results and drops in any order from any thread, and come out in order.

    Bounded by whoever expects frames: the engine's ``submit`` lets each DNN run at most two frames ahead of the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[FrameOutcome] = deque()
        self._by_frame: dict[int, FrameOutcome] = {}

    def __len__(self) -> int:
        """Frames that have not come out yet."""
        with self._lock:
            return len(self._waiting)

    def expect(self, frame: Frame, dnns: Sequence[str]) -> None:
        """Announce a frame, before any of its results can come."""
        outcome = FrameOutcome(frame, tuple(dnns))
        with self._lock:
            self._waiting.append(outcome)
            self._by_frame[id(frame)] = outcome  # the outcome keeps the frame alive, so that the id stays its own

    def settle(self, end: Result | Drop) -> None:
        """A DNN is through with a frame. Raises LookupError when nobody expected it, or for the second time."""
        with self._lock:
            outcome = self._by_frame.get(id(end.frame))
            if outcome is None or end.dnn not in outcome.dnns or end.dnn in outcome.ends:
                raise LookupError(f"DNN '{end.dnn}' ended a frame that was not waiting for it")
            outcome.ends[end.dnn] = end
            if outcome.complete:
                self._lock.notify_all()

    def wait_complete(self, timeout_s: float) -> bool:
        """Wait until every frame is complete; False when that takes longer."""
        with self._lock:
            return self._lock.wait_for(lambda: all(outcome.complete for outcome in self._waiting), timeout_s)

    def take(self, *, all_of_them: bool = False) -> Iterator[FrameOutcome]:
        """The frames at the head that are complete; with `all_of_them` the rest too, complete or not."""
        while True:
            with self._lock:
                if not self._waiting or not (all_of_them or self._waiting[0].complete):
                    return
                outcome = self._waiting.popleft()
                del self._by_frame[id(outcome.frame)]
            yield outcome
