"""Futures, and the tasks that an executor runs."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from multi_dnn_ros.standalone.missing import Surface


class Future(Surface):
    """A future; done callbacks run in the thread that sets the result, or as tasks of an executor."""

    def __init__(self, *, executor: Any = None) -> None:
        """Create a future.

        Args:
            executor: runs the done callbacks (`executor.create_task(callback, future)`); held by a weak reference.
        """
        self._executor: Callable[[], Any] = _no_executor if executor is None else weakref.ref(executor)
        self._lock = threading.Lock()
        self._done = False
        self._cancelled = False
        self._result: Any = None
        self._exception: Any = None
        self._exception_fetched = False
        self._callbacks: list[Callable[[Any], Any]] = []
        self._resumes: list[Callable[[], Any]] = []

    def __del__(self) -> None:
        if getattr(self, "_exception", None) is not None and not self._exception_fetched:
            print(f"The following exception was never retrieved: {self._exception}", file=sys.stderr)

    def __await__(self) -> Generator[Future, None, Any]:
        """Wait in a coroutine; an executor resumes the coroutine when the future is done."""
        while not self._done:
            yield self
        return self.result()

    def done(self) -> bool:
        """Return whether there is a result or an exception."""
        return self._done

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._cancelled

    def result(self) -> Any:
        """Return the result, None if there is none yet; raise the exception if one was set."""
        if self._exception:
            raise self.exception()
        return self._result

    def exception(self) -> Any:
        """Return the exception, if one was set."""
        self._exception_fetched = True
        return self._exception

    def set_result(self, result: Any) -> None:
        """Set the result and run the done callbacks."""
        with self._lock:
            self._result, self._done, self._cancelled = result, True, False
        self._run_callbacks()

    def set_exception(self, exception: Any) -> None:
        """Set an exception and run the done callbacks."""
        with self._lock:
            self._exception, self._exception_fetched, self._done, self._cancelled = exception, False, True, False
        self._run_callbacks()

    def cancel(self) -> None:
        """Cancel unless done, and run the done callbacks; as in rclpy, a cancelled future is not done."""
        with self._lock:
            if not self._done:
                self._cancelled = True
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()
        executor = self._executor()
        for callback in callbacks:
            if executor is not None:
                executor.create_task(callback, self)
                continue
            try:
                callback(self)
            except Exception as error:
                # A failing callback must not prevent the others.
                warnings.warn(f"Unhandled exception in done callback: {error}", stacklevel=2)

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call `callback(self)` when done, or immediately if already done."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        executor = self._executor()
        if executor is not None:
            executor.create_task(callback, self)
        else:
            callback(self)

    def resume_when_done(self, resume: Callable[[], Any]) -> None:
        """Call `resume()` in the thread that completes this future, regardless of its executor; immediately if already
        done.
        """
        with self._lock:
            if not self._done:
                self._resumes.append(resume)
                return
        resume()


class Task(Future):
    """A function or coroutine that an executor runs; its result is the future's."""

    def __init__(
        self,
        handler: Callable[..., Any] | Coroutine[Any, Any, Any],
        args: Any = None,
        kwargs: Any = None,
        executor: Any = None,
    ) -> None:
        """Create a task that calls the function `handler` with `args` and `kwargs`, or resumes the coroutine."""
        super().__init__(executor=executor)
        self._handler: Any = handler
        self._args = args or ()
        self._kwargs = kwargs or {}
        if inspect.iscoroutinefunction(handler):
            self._handler = handler(*self._args, **self._kwargs)
        self._running = threading.Lock()
        self.awaits: Future | None = None
        """The future that the coroutine waits for, None if it can continue now."""

    def __call__(self) -> None:
        """Run the function, or the coroutine up to its next wait; no effect while it is running."""
        if not self._running.acquire(blocking=False):
            return
        try:
            if self._done:
                return
            self.awaits = None
            try:
                if inspect.iscoroutine(self._handler):
                    waits_for = self._handler.send(None)
                    self.awaits = waits_for if isinstance(waits_for, Future) else None
                    return
                result = self._handler(*self._args, **self._kwargs)
            except StopIteration as end:
                result = end.value
            except Exception as error:
                self._handler = None
                self.set_exception(error)
                return
            self._handler = None
            self.set_result(result)
        finally:
            self._running.release()

    def executing(self) -> bool:
        """Return whether the task is running now."""
        return self._running.locked()


def _no_executor() -> None:
    """Replaces the weak reference if there is no executor."""
