"""Sections of Python that the threads of an engine run one after another."""

from __future__ import annotations

import sys
import threading

import pytest
from engine_fakes import WAIT

from multi_dnn_ros.engine import turns as turns_module
from multi_dnn_ros.engine.turns import Turns


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_MAX_WAIT_S", WAIT)


@pytest.mark.usefixtures("patient")
def test_one_thread_at_a_time() -> None:
    turns, inside, most = Turns(), [0], [0]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(200):
            with turns:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    finally:
        sys.setswitchinterval(before)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] == 1


def test_a_long_section_does_not_block_the_other_threads() -> None:
    turns, entered, leave = Turns(), threading.Event(), threading.Event()

    def stay() -> None:
        with turns:
            entered.set()
            leave.wait(WAIT)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(WAIT)
    for _ in range(3):
        with turns:  # after the longest wait
            assert thread.is_alive()
    leave.set()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.usefixtures("patient")
def test_an_error_ends_the_turn() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="broken"), turns:
        raise ValueError("broken")
    with turns:
        pass
    thread = threading.Thread(target=lambda: turns.__enter__())
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
