"""The CPU priority of threads that a library starts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")

_kept: ThreadPoolExecutor | None = None  # with one thread


def keep_priority() -> None:
    """Start a thread with the current nice value of the calling thread, for :func:`call_at_kept_priority`.

    Call it before the calling thread raises its nice value. A new thread inherits the nice value of the thread that
    starts it, and cannot lower it again without a privilege. Further calls have no effect.
    """
    global _kept
    if _kept is None:
        executor = ThreadPoolExecutor(1, thread_name_prefix="kept priority")
        executor.submit(_do_nothing).result()  # starts the thread now
        _kept = executor


def call_at_kept_priority(function: Callable[[], Value]) -> Value:
    """Call `function` in the thread that :func:`keep_priority` started, or in the calling thread if there is none.

    Returns what it returns and raises what it raises. For functions that start threads which are used long after the
    call, such as the thread pool of a session.
    """
    return function() if _kept is None else _kept.submit(function).result()


def _do_nothing() -> None:
    pass
