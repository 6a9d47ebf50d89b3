"""The CPU priority of an engine process and of its threads."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

_MAX_NICE = 19


def nice_increment(device_type: str, engine_nice: int) -> int:
    """How much to add to the nice value of an engine process. device_type: `cpu` or `cuda`.

    It is 0 on a GPU, because the launches take little CPU time and the GPU would have to wait for them.
    """
    return engine_nice if device_type == "cpu" else 0


def current_nice() -> int:
    """The nice value of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def lower_thread_priority(nice: int) -> None:
    """Set the nice value of the calling thread; threads and processes that it starts later inherit it."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(nice, _MAX_NICE))


def lower_process_priority(base: int, increment: int) -> None:
    """Raise the nice value of every thread of this process to at least `base` + `increment`.

    base: nice value of the process that this one competes with. No privilege is needed, because no value is lowered.
    """
    target = min(base + increment, _MAX_NICE)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has just ended
            if os.getpriority(os.PRIO_PROCESS, int(thread.name)) < target:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), target)
    # Where the kernel groups tasks by session (sched(7), autogroup), it compares nice values of threads only within a
    # session, and sessions by the nice value of their group. An engine process leads a separate session.
    if os.getsid(0) == os.getpid():  # otherwise the group contains processes of others
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(min(increment, _MAX_NICE)))
