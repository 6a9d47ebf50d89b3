"""Waiting for a condition, and whether a process runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil


def until(
    condition: Callable[[], Any],
    what: str = "the condition",
    limit_s: float = 60.0,
    told: Callable[[], object] = lambda: "",
) -> Any:
    """The first true value of `condition`; an AssertionError after `limit_s`, with what `told` returns."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}; {told()}"
        time.sleep(0.005)
    return value


def runs(process: psutil.Process | int) -> bool:
    """Whether a process, or the one of this number, runs. A zombie does not."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
