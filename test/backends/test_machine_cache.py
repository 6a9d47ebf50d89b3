"""Caches that several engine processes use at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from multi_dnn_ros.backends.machine_cache import MachineCache

#: All processes write the same entries, as those of GPUs of the same type do, and log what is wrong to stdout.
_ENTRIES = """
import logging, sys
from pathlib import Path
from multi_dnn_ros.backends.machine_cache import Key, MachineCache
logging.basicConfig(stream=sys.stdout)
cache = MachineCache("backends", "the measured backends", Path(sys.argv[1]) / "backends")
def work():
    for number in range(200):
        key = Key(f"{number:016}", {"device": "cuda"}, {"gpu": "H100"})
        assert cache.read(key) in (None, number)
        cache.write(key, number)
        assert cache.read(key) == number
"""
_START = """
print("ready", flush=True)
sys.stdin.readline()
work()
"""


def run_together(program: str, folder: Path, processes: int = 2) -> list[str]:
    """Run the function `work` of a program in several processes at the same time. Returns what each has printed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program + _START, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=60.0)[0] for process in started]


def test_processes_that_make_the_same_entries_do_not_disturb_each_other(tmp_path: Path) -> None:
    assert run_together(_ENTRIES, tmp_path) == ["", ""]
    cache = MachineCache("backends", "the measured backends", tmp_path / "backends")
    assert len([*cache.folder.iterdir()]) == len([*cache.folder.glob("*/*")]) == 200  # nothing temporary is left
