"""Functions that start threads run at the priority that the process had before it lowered that of its main thread."""

from __future__ import annotations

import subprocess
import sys

#: Runs in a separate process, because a nice value cannot be lowered again.
_PROGRAM = """
import os, threading
from multi_dnn_ros.backends.thread_priority import call_at_kept_priority, keep_priority

def nice():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

def nice_of_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(nice()))
    thread.start()
    thread.join()
    return found[0]

def fail():
    raise ValueError("from the function")

assert call_at_kept_priority(threading.get_native_id) == threading.get_native_id()
before = nice()
keep_priority()
os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
keep_priority()  # no effect
try:
    call_at_kept_priority(fail)
except ValueError as error:
    print(error)
print(nice_of_new_thread(), call_at_kept_priority(nice_of_new_thread) - before)
"""


def test_threads_started_at_the_kept_priority_inherit_it() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "from the function\n19 0\n"
