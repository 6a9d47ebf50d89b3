"""Lets the threads of an engine compute in Python one after another."""

from __future__ import annotations

import threading
from types import TracebackType

#: Longest wait for the other threads, seconds: about as long as decoding the outputs of a DNN takes.
_MAX_WAIT_S = 0.003


class Turns:
    """Context manager for sections that compute mostly in Python: one thread at a time.

    Results of several DNNs are often ready at the same time. If their threads decode them at the same time, they
    compete for the GIL, which NumPy and PyTorch release in almost every call, and each switch to another thread costs
    as much CPU time as some ten calls. One after another, the results are ready no later.

    A thread that has waited for _MAX_WAIT_S enters anyway: decoding that takes long mostly runs without the GIL.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        if self._lock.acquire(timeout=_MAX_WAIT_S):
            self._holder = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._holder == threading.get_ident():
            self._holder = None
            self._lock.release()
