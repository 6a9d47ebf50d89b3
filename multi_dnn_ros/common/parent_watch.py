"""Ends a process that multiprocessing started when its parent ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing import connection


def end_with_parent() -> None:
    """End this process, with exit code 1, when the process that started it through multiprocessing has ended.

    For processes that may be waiting for each other at that moment, such as in a collective operation of NCCL, and
    would otherwise notice it only after minutes. No effect in a process that multiprocessing did not start.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # the other threads may never return

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
