"""A process ends when the process that started it ends, even if that was killed."""

from __future__ import annotations

import multiprocessing
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest
from waiting import runs, until

from multi_dnn_ros.common.parent_watch import end_with_parent

_PATIENCE_S = 60.0


def wait_forever() -> None:
    end_with_parent()
    while True:
        signal.pause()


def start_one_more(connection: Connection[Any, Any], method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=wait_forever)
    process.start()
    connection.send(process.pid)
    process.join()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_ends_when_its_parent_is_killed(method: str) -> None:
    here, there = multiprocessing.Pipe()
    parent = multiprocessing.get_context("spawn").Process(target=start_one_more, args=(there, method))
    parent.start()
    assert here.poll(_PATIENCE_S)
    child = psutil.Process(here.recv())
    parent.kill()
    parent.join()
    try:
        until(lambda: not runs(child), "the end of a process without a parent", _PATIENCE_S)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()
