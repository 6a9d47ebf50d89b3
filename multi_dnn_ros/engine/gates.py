"""Holds frames back on a GPU: decides, whenever a frame starts or ends, which DNNs' gates are closed."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.task import DnnTask

log = logging.getLogger(__name__)

#: A frame that was held back for this long goes on: it has lost its use otherwise.
TIME_LIMIT_S = 1.0
#: Streams share hardware queues, and a closed gate blocks all that is behind it in its queue, perhaps the frame that
#: closed it. A frame that holds others back is blocked if it takes _TIMES_ALONE times its duration alone (_UNKNOWN_S if
#: that was not measured), and more than _BLOCKED_S.
_TIMES_ALONE, _UNKNOWN_S, _BLOCKED_S = 10, 0.05, 0.1


class Gates:
    """The gates of the DNNs of one GPU. Thread-safe.

    A frame that the policy puts before launched ones closes their gates when it starts: they stop after the segment
    that they are in, and go on when it has ended. One whose gate is closed may be launched all the same; it waits on
    the GPU.

    on_blocked: called with the name of a DNN whose frame cannot go on because of the gates that it has closed. They are
    then opened; its next frames should be launched on another stream.
    """

    def __init__(
        self,
        tasks: Sequence[DnnTask],
        policy: Policy,
        clock: Callable[[], int],
        on_blocked: Callable[[str], None] = lambda dnn: None,
    ) -> None:
        self._gates = {task.name: task.gate for task in tasks if task.gate is not None}
        self._policy = policy
        self._clock = clock
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._launched: dict[str, deque[Inference]] = {task.name: deque() for task in tasks}
        self._is_preemptive = False  # whether a gate may have to be closed
        self._closed_at: dict[str, float] = {}
        self._began_s: dict[Inference, float] = {}
        self._exempt: set[Inference] = set()  # launched ones that were held back for too long, or hold back no others
        self._stopped = threading.Event()
        self._watch: threading.Thread | None = None
        #: How often a gate was opened because of the time limit.
        self.forced = 0
        self.update(tasks)

    def update(self, tasks: Sequence[DnnTask]) -> None:
        """Priorities or deadlines have changed."""
        preemptive = any(self._policy.may_overtake(a, b) for a in tasks for b in tasks if a.name != b.name)
        with self._lock:
            self._is_preemptive = bool(self._gates) and preemptive
            self._decide()

    def begin(self, inference: Inference) -> None:
        """The inference is about to be launched."""
        with self._lock:
            self._launched[inference.task.name].append(inference)
            self._began_s[inference] = time.monotonic()
            if self._is_preemptive:
                self._decide()

    def end(self, inference: Inference) -> None:
        """Its outputs have arrived, or it was not launched."""
        with self._lock:
            if self._began_s.pop(inference, None) is not None:
                self._launched[inference.task.name].remove(inference)
            self._exempt.discard(inference)
            if self._is_preemptive or self._closed_at:
                self._decide()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Context in which all gates are open."""
        with self._lock:
            before, self._is_preemptive = self._is_preemptive, False
            self._decide()
        try:
            yield
        finally:
            with self._lock:
                self._is_preemptive = before
                self._decide()

    def stop(self) -> None:
        """Open all gates, for good."""
        self._stopped.set()
        with self._lock:
            self._is_preemptive = False
            self._decide()

    def _decide(self) -> None:
        """Close and open the gates; the caller holds the lock."""
        now_ns = self._clock()
        first = {dnn: launched[0] for dnn, launched in self._launched.items() if launched}
        holding = [inference for inference in first.values() if inference not in self._exempt]
        for dnn, gate in self._gates.items():
            held = first.get(dnn)
            closed = held is not None and held in holding and self._is_preemptive and any(
                self._policy.holds_back(other, held, now_ns) for other in holding if other is not held
            )  # fmt: skip
            if closed == gate.is_open:
                gate.is_open = not closed
                if not closed:
                    self._closed_at.pop(dnn, None)
                    continue
                self._closed_at[dnn] = time.monotonic()
                if self._watch is None:
                    self._watch = threading.Thread(target=self._open_overdue, name="gates", daemon=True)
                    self._watch.start()

    def _open_overdue(self) -> None:
        while not self._stopped.wait(_BLOCKED_S / 2):
            with self._lock:
                now_s = time.monotonic()
                overdue = [dnn for dnn, since_s in self._closed_at.items() if now_s - since_s > TIME_LIMIT_S]
                blocked = [dnn for dnn, launched in self._launched.items() if launched and self._closed_at
                           and self._is_blocked(launched[0], now_s)]  # fmt: skip
                for dnn in (*overdue, *blocked):
                    self.forced += 1
                    self._exempt.update(self._launched[dnn])
                if overdue or blocked:
                    self._decide()
            for dnn in overdue:
                log.warning(
                    "DNN %s was held back by more important frames for %g s and now goes on (%d times so far)",
                    dnn, TIME_LIMIT_S, self.forced,
                )  # fmt: skip
            for dnn in blocked:
                log.warning("DNN %s shared a hardware queue with one that it held back; it gets another stream", dnn)
                self._on_blocked(dnn)

    def _is_blocked(self, inference: Inference, now_s: float) -> bool:
        if inference in self._exempt or inference.task.name in self._closed_at:
            return False
        remaining_ns = inference.task.remaining_ns
        alone_s = _UNKNOWN_S if remaining_ns is None else remaining_ns[0] / 1e9
        return now_s - self._began_s[inference] > max(_BLOCKED_S, _TIMES_ALONE * alone_s)
