"""Memory of images is reused for the next image, without page faults and by any thread."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from multi_dnn_ros.common.allocator import configure_malloc
    assert configure_malloc()
def image():
    np.ones(1280 * 720 * 3, np.uint8)
for _ in range(3):
    image()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in range(100):
    image()
    np.ones(3_000_000 + 40_000 * size, np.uint8)  # larger than ever before: the threshold that adapts does not help
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_images_cause_no_page_faults_once_memory_is_allocated():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", _FAULTS, how], check=True, capture_output=True).stdout)
        for how in ("default", "kept")
    }
    assert faults["kept"] * 10 < faults["default"], faults


_THREADS = """
import sys, threading
import numpy as np
if sys.argv[1] == "kept":
    from multi_dnn_ros.common.allocator import configure_malloc
    assert configure_malloc()
def resident_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS:"))
go = [threading.Event() for _ in range(8)]
def allocate(turn):
    go[turn].wait()
    blocks = [np.ones(20_000, np.uint8) for _ in range(100)]
threads = [threading.Thread(target=allocate, args=(turn,)) for turn in range(8)]
for thread in threads:
    thread.start()
go[0].set(); threads[0].join()
before = resident_kb()
for turn in range(1, 8):  # one after another: only one thread at a time holds blocks
    go[turn].set(); threads[turn].join()
print(resident_kb() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_memory_that_a_thread_has_freed_serves_other_threads():
    grown_kb = {
        how: int(subprocess.run([sys.executable, "-c", _THREADS, how], check=True, capture_output=True).stdout)
        for how in ("default", "kept")
    }
    assert grown_kb["kept"] < 1_000 < 5_000 < grown_kb["default"], grown_kb
