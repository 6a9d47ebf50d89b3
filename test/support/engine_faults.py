"""Finds the engine processes that a test started."""

from __future__ import annotations

from contextlib import suppress

import psutil


def engine_pids() -> list[int]:
    """Process IDs of the running engine processes that this process started."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("engine_main" in part for part in child.cmdline()):
                found.append(child.pid)
    return found
