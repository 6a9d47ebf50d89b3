"""Real-time priority for timing on a shared machine."""

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
    """Context in which all threads of this process preempt every thread that is not real-time.

    On exit it sleeps for as long as the body took: this returns the time to other processes and avoids real-time
    throttling by the kernel. Raises ProfileError if it is not permitted; Linux with CAP_SYS_NICE is required.
    """
    if not hasattr(os, "sched_setscheduler"):
        raise ProfileError("real-time priority is not available on this operating system")
    begin = time.monotonic()
    try:
        _schedule(os.SCHED_FIFO, _PRIORITY)
        yield
    except PermissionError:
        raise ProfileError("real-time priority is not permitted; it requires CAP_SYS_NICE") from None
    finally:
        _schedule(os.SCHED_OTHER, 0)
    time.sleep(time.monotonic() - begin)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))
