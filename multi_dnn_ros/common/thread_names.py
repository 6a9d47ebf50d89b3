"""Names of threads as the system's tools show them (`top -H`, `perf`, `ps -L`)."""

from __future__ import annotations

import threading
from pathlib import Path
from weakref import WeakSet

#: Longest name that Linux keeps.
_LENGTH = 15

_named: WeakSet[threading.Thread] = WeakSet()


def name_threads() -> None:
    """Give the running Python threads their names in the system too, cut to 15 bytes; to be called now and then.

    Python does so itself from version 3.14 on. The main thread keeps the name of the process. Threads that a library
    starts have that of the thread which started them. Without effect where there is no /proc.
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
