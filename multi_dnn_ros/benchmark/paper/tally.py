"""Counts the inferences of one DNN within a time window."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Window:
    """The counted interval, on the monotonic clock, which all processes of a machine share."""

    begin_ns: int
    end_ns: int

    @classmethod
    def ahead(cls, run_in_s: float, seconds: float) -> Window:
        """A window of `seconds` that starts `run_in_s` from now, to give every DNN time to warm up."""
        begin_ns = time.monotonic_ns() + round(run_in_s * 1e9)
        return cls(begin_ns, begin_ns + round(seconds * 1e9))


@dataclass
class Tally:
    """Inferences of one DNN in a closed loop, which starts the next inference on each result.

    latencies_ns: of the inferences that start and end in the window. An inference that ends later counts if it is the
    only one, so that every DNN has a sample. completed: number of inferences that end in the window, whenever they
    started. For a rate this is right, because the inference that runs when the window begins makes up for the one that
    runs at its end. host_ns, jobs: CPU time of the threads that issue the DNN's work, and the number of jobs; those of
    a batch are divided among its frames.
    """

    window: Window
    latencies_ns: list[int] = field(default_factory=list)
    completed: int = 0
    host_ns: int = 0
    jobs: float = 0

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Record a finished inference."""
        window = self.window
        if window.begin_ns < end_ns <= window.end_ns:
            self.completed += 1
        if begin_ns >= window.begin_ns and (end_ns <= window.end_ns or not self.latencies_ns):
            self.latencies_ns.append(end_ns - begin_ns)

    def wants_more(self, now_ns: int) -> bool:
        """Whether the DNN has to continue."""
        return now_ns < self.window.end_ns or not self.latencies_ns


class Ticker(threading.Thread):
    """A Python thread that wakes up every millisecond, like a control loop that runs next to the DNNs."""

    PERIOD_NS = 1_000_000

    def __init__(self) -> None:
        super().__init__(name="ticker", daemon=True)
        self.late_ns: list[int] = []
        self._stopped = threading.Event()

    def run(self) -> None:
        due_ns = time.monotonic_ns() + self.PERIOD_NS
        while not self._stopped.is_set():
            time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            now_ns = time.monotonic_ns()
            self.late_ns.append(now_ns - due_ns)
            due_ns = max(due_ns, now_ns) + self.PERIOD_NS

    def __enter__(self) -> Ticker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self.join()
