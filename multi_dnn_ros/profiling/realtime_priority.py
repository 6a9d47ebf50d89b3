"""Holding the processors while a round is timed, on a machine that others use too."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from multi_dnn_ros.planning.profile import ProfileError

_PRIORITY = 10


@contextmanager
def realtime_priority() -> Iterator[None]:
    """Inside, all threads of this process run before anything that is not real-time; afterwards it rests for as long.

    The rest is what the others lost, and keeps the kernel from throttling real-time work. Linux, with CAP_SYS_NICE.
    Raises ProfileError where that is not allowed.
    """
    if not hasattr(os, "sched_setscheduler"):
        raise ProfileError("real-time priority is asked for, which this operating system does not have")
    begin = time.monotonic()
    try:
        _schedule(os.SCHED_FIFO, _PRIORITY)
        yield
    except PermissionError:
        raise ProfileError("real-time priority is asked for, but not allowed here; it takes CAP_SYS_NICE") from None
    finally:
        _schedule(os.SCHED_OTHER, 0)
    time.sleep(time.monotonic() - begin)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))
