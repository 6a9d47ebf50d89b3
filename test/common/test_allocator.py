"""Memory of images is reused for the next image without page faults."""

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
