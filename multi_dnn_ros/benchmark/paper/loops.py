"""Closed loops: each DNN starts its next inference on the result of the previous one.

All loops start at the same time and count within a window, so that the counted inferences run while all DNNs are warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
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
    """Inferences of one DNN. latencies_ns: of those that start and end in the window; an inference that ends later
    counts if it is the only one, so that every DNN has a sample.
    """

    window: Window
    latencies_ns: list[int] = field(default_factory=list)

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Record a finished inference."""
        if begin_ns >= self.window.begin_ns and (end_ns <= self.window.end_ns or not self.latencies_ns):
            self.latencies_ns.append(end_ns - begin_ns)

    def wants_more(self, now_ns: int) -> bool:
        """Whether the DNN has to continue."""
        return now_ns < self.window.end_ns or not self.latencies_ns


#: Runs prepared DNNs until the end of the window; returns one tally per DNN, and raises what an inference raises.
Loop = Callable[[Window], list[Tally]]


def one_dnn_loop(infer: Callable[[], object], mode: Callable[[], AbstractContextManager[None]]) -> Loop:
    """A process with a single DNN. infer: runs one inference to its end. mode: gradient mode of the thread."""

    def run(window: Window) -> list[Tally]:
        tally, now = Tally(window), time.monotonic_ns()
        with mode():
            while tally.wants_more(now):
                begun = now
                infer()
                now = time.monotonic_ns()
                tally.add(begun, now)
        return [tally]

    return run
