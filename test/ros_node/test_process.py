"""The node's process as a whole."""

from __future__ import annotations

import sys

import pytest

from multi_dnn_ros.ros import process


def test_threads_share_the_interpreter_in_short_turns_while_the_node_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def node() -> None:
        turns.append(sys.getswitchinterval())
        raise KeyboardInterrupt  # as a signal would, while it is made

    before = sys.getswitchinterval()
    monkeypatch.setattr(process, "MultiDnnNode", node)
    assert process.run([]) == 0
    assert turns[0] < before
    assert sys.getswitchinterval() == before
