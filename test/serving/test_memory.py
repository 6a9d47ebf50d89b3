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
    from multi_dnn_ros.serving.process_settings import configure_malloc
    configure_malloc()
def image():
    np.ones(1280 * 720 * 3, np.uint8)
for _ in range(3):
    image()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in range(100):
    image()
    np.ones(3_000_000 + 40_000 * size, np.uint8)  # larger than any before, so that an adaptive threshold does not help
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_images_cause_no_page_faults_once_memory_is_allocated():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", _FAULTS, how], check=True, capture_output=True).stdout)
        for how in ("default", "kept")
    }
    assert faults["kept"] * 10 < faults["default"], faults


_GAPS = """
import sys, time
import numpy as np
from multi_dnn_ros.serving.process_settings import configure_malloc, return_free_memory_every
configure_malloc()
def resident_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS:"))
images, small = [], []
for _ in range(100):  # a small block that stays above each image
    images.append(np.ones(300_000, np.uint8))
    small.append(np.ones(600, np.uint8))
images.clear()
before = resident_kb()
return_free_memory_every(float(sys.argv[1]))
deadline = time.monotonic() + float(sys.argv[2])
while before - resident_kb() < 20_000 and time.monotonic() < deadline:
    time.sleep(0.01)
print(before - resident_kb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such function")
@pytest.mark.parametrize(("period_s", "patience_s", "returned"), [("0.02", "60", True), ("1000", "0.3", False)])
def test_free_memory_between_blocks_in_use_is_returned(period_s: str, patience_s: str, returned: bool) -> None:
    command = [sys.executable, "-c", _GAPS, period_s, patience_s]
    returned_kb = int(subprocess.run(command, check=True, capture_output=True).stdout)
    assert (returned_kb >= 20_000) == returned
