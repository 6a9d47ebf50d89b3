"""Keeps the results of each DNN in the order of their frames while one process takes over from another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.outcomes import Outcomes
from multi_dnn_ros.serving.served_process import ServedProcess


class HandOver:
    """The :class:`multi_dnn_ros.serving.outcomes.Outcomes` of a process that takes over DNNs from `previous`.

    A result of a DNN waits until `previous` has answered all frames of this DNN, at most until `previous` has ended. If
    `previous` hangs, it is killed and its frames are dropped. Thread-safe.

    accounts: receive the outcomes. on_gap: called once for each DNN that had a result of `previous`, at the first
    result that follows, with name and ms since the last result of `previous`.
    """

    def __init__(self, accounts: Outcomes, previous: ServedProcess, on_gap: Callable[[str, float], None]) -> None:
        self._accounts = accounts
        self._previous = previous
        self._on_gap = on_gap
        self._lock = threading.RLock()  # also held while waiting results are passed on, which keeps their order
        self._waiting: dict[str, list[tuple[int, Any, Timing]]] = {}
        self._taken_over: set[str] = set()  # DNNs whose frames `previous` has all answered
        previous.watch(self._on_answered)

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        if dnn not in self._taken_over:
            with self._lock:
                if dnn not in self._taken_over:  # otherwise `previous` has given its last answer meanwhile
                    self._waiting.setdefault(dnn, []).append((number, output, timing))
                    self._pass_on(dnn)
                    return
        self._accounts.result(number, dnn, output, timing)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        self._accounts.drop(number, dnn, reason, message)

    def failure(self, failure: Failure) -> None:
        self._accounts.failure(failure)

    def enabled(self, dnn: str) -> None:
        self._accounts.enabled(dnn)

    def _on_answered(self) -> None:
        """Called in the reader thread of the previous process."""
        with self._lock:
            for dnn in list(self._waiting):
                self._pass_on(dnn)

    def _pass_on(self, dnn: str) -> None:
        """Pass on the results of a DNN if no earlier ones can follow; the caller holds the lock."""
        previous = self._previous
        if previous.may_answer(dnn):
            return
        last_ns = previous.last_results_ns.get(dnn)
        waiting = self._waiting.pop(dnn)
        for number, output, timing in waiting:
            self._accounts.result(number, dnn, output, timing)
        self._taken_over.add(dnn)
        if last_ns is not None:
            self._on_gap(dnn, (time.monotonic_ns() - last_ns) / 1e6)
