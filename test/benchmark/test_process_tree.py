"""Resource use of a process and its children."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from multi_dnn_ros.benchmark.process_tree import ProcessTree

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
child.wait()
print("gone", flush=True)
sys.stdin.readline()
"""
_CHILD = (
    "import sys; block = bytearray(64 << 20); block[::4096] = b'x' * len(block[::4096])\nwhile True: sum(range(1000))"
)


def test_children_are_counted_after_they_have_ended():
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdin
        assert parent.stdout
        parent.stdout.readline()
        tree = ProcessTree(parent.pid)
        deadline = time.monotonic() + 30.0
        while (found := tree.sample()).cpu_s < 1.0 or found.memory_bytes < 64 << 20:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert found.processes == 2
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "gone\n"
        after = tree.sample()
        assert after.processes == 1
        assert after.cpu_s >= found.cpu_s
        assert after.memory_bytes < found.memory_bytes - (48 << 20)
    finally:
        parent.kill()
        parent.communicate()
    with pytest.raises(psutil.NoSuchProcess):
        tree.sample()
