"""The result of a service call that is still under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from multi_dnn_ros.standalone.missing import Surface


class Future(Surface):
    """A result that comes later; done callbacks run in the thread that sets it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._cancelled = False
        self._result: Any = None
        self._exception: BaseException | None = None
        self._callbacks: list[Callable[[Future], Any]] = []

    def __await__(self) -> Any:
        raise NotImplementedError(
            "the standalone runtime has no coroutines; use add_done_callback or spin_until_future_complete"
        )

    def done(self) -> bool:
        """Return whether there is a result, an exception or a cancellation."""
        return self._done.is_set()

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._cancelled

    def result(self) -> Any:
        """Return the result, None while there is none; raise the exception if that is what came."""
        if self._exception is not None:
            raise self._exception
        return self._result

    def exception(self) -> BaseException | None:
        """Return the exception, if that is what came."""
        return self._exception

    def set_result(self, result: Any) -> None:
        """Set the result and run the done callbacks."""
        self._finish(result, None, cancelled=False)

    def set_exception(self, exception: BaseException) -> None:
        """Set an exception and run the done callbacks."""
        self._finish(None, exception, cancelled=False)

    def cancel(self) -> None:
        """Cancel, unless already done, and run the done callbacks."""
        self._finish(None, None, cancelled=True)

    def _finish(self, result: Any, exception: BaseException | None, *, cancelled: bool) -> None:
        with self._lock:
            if self._done.is_set():
                return
            self._result, self._exception, self._cancelled = result, exception, cancelled
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call `callback(self)` when done, at once when already done."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def remove_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Take a done callback back."""
        with self._lock:
            self._callbacks = [kept for kept in self._callbacks if kept != callback]
