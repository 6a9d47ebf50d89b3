"""The node's process as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from multi_dnn_ros.ros import process


def test_threads_share_the_interpreter_in_short_turns_while_the_node_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def node(**arguments: object) -> None:
        turns.append(sys.getswitchinterval())
        raise KeyboardInterrupt  # as a signal would, while it is made

    before = sys.getswitchinterval()
    monkeypatch.setattr(process, "MultiDnnNode", node)
    assert process.run([]) == 0
    assert turns[0] < before
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_libraries_are_imported_ends_the_executable_quietly(name: str) -> None:
    code = f"""
import signal, sys
from multi_dnn_ros.executable import main

class Importing:
    def find_spec(self, module, path, target=None):
        if module == "multi_dnn_ros.ros":
            signal.raise_signal(signal.{name})

sys.meta_path.insert(0, Importing())
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_interpreter_ends_without_going_through_all_that_was_imported() -> None:
    code = """
import atexit, gc
from multi_dnn_ros.ros import process

def node(**arguments):
    raise KeyboardInterrupt

process.MultiDnnNode = node
atexit.register(lambda: print(len(gc.get_objects()), "left to go through"))  # after what is registered later
assert process.run([]) == 0
assert len(gc.get_objects()) > 10_000
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) < 1_000
