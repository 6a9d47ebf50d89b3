"""A process that is started with a signal blocked survives it until it unblocks or ignores it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest

from multi_dnn_ros.common.signal_mask import block_in_children


def answer(pipe: Connection) -> None:
    pipe.send(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    pipe.recv()


@pytest.mark.parametrize("blocked", [{signal.SIGINT}, {signal.SIGINT, signal.SIGTERM}, set()])
def test_signals_that_arrive_while_a_process_starts_are_blocked(blocked: set[signal.Signals]) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with block_in_children(*blocked):
        process.start()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    theirs.close()
    for number in blocked:
        os.kill(process.pid or 0, number)  # at once: the interpreter is still starting
    try:
        assert ours.poll(30.0), "the process has ended or hangs"
        assert blocked <= ours.recv()
        ours.send(None)
        process.join(30.0)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_the_mask_is_restored_after_an_error() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(OSError, match="full"), block_in_children(signal.SIGTERM):
        raise OSError("full")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
