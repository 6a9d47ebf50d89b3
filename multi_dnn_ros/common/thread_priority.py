"""The CPU priority of threads that a library starts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Value = TypeVar("Value")

_kept: ThreadPoolExecutor | None = None  # of one thread


def keep_priority() -> None:
    """Start a thread with the present nice value of the calling thread, for :func:`call_at_kept_priority`.

    To be called before the calling thread raises its nice value. A new thread inherits the nice value of the thread
    that starts it, and without a privilege none can lower it again. Further calls have no effect.
    """
    global _kept
    if _kept is None:
        executor = ThreadPoolExecutor(1, thread_name_prefix="kept priority")
        executor.submit(_do_nothing).result()  # starts the thread now
        _kept = executor


def call_at_kept_priority(function: Callable[[], Value]) -> Value:
    """Call `function` in the thread of :func:`keep_priority`, or in this one if there is none; return or raise its
    outcome.

    For functions that start threads which are used long after the call, such as the thread pool of a session.
    """
    return function() if _kept is None else _kept.submit(function).result()


def _do_nothing() -> None:
    pass
