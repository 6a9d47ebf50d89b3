"""Names of threads as the system's tools show them (`top -H`, `perf`, `ps -L`)."""

from __future__ import annotations

import threading
from pathlib import Path
from weakref import WeakSet

#: Maximum length of a thread name on Linux, in bytes.
_LENGTH = 15

_named: WeakSet[threading.Thread] = WeakSet()


def name_threads() -> None:
    """Set the names of the running Python threads in the system too, cut to 15 bytes. Call it now and then.

    Python does so itself from version 3.14 on. The main thread keeps the name of the process. A thread that a library
    starts has the name of the thread that started it. No effect without /proc.
    """
    for thread in threading.enumerate():
        if thread in _named or thread is threading.main_thread() or thread.native_id is None:
            continue
        _named.add(thread)
        try:
            path = Path(f"/proc/self/task/{thread.native_id}/comm")
            path.write_bytes(thread.name.encode()[:_LENGTH])
        except OSError:
            pass  # the thread has just ended, or this is not Linux
