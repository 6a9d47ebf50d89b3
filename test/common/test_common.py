"""Errors, files and processes that several packages share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from waiting import runs, until

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import error_and_causes, summarize_error
from multi_dnn_ros.common.processes import end_with_parent, interrupts
from multi_dnn_ros.common.reporting import provenance, table


def test_the_errors_behind_an_error_come_once_each_and_are_summarized() -> None:
    first, named, raised = OSError("\n no cable\nsecond line"), KeyError("camera"), RecursionError()
    raised.__cause__, raised.__context__, named.__context__ = named, ValueError("hidden"), first
    first.__cause__ = raised  # errors that name each other
    assert [*error_and_causes(raised)] == [raised, named, first]
    assert [*error_and_causes(None)] == []
    assert [summarize_error(error) for error in (raised, first)] == ["RecursionError", "no cable"]


@pytest.mark.parametrize("to_disk", [False, True])
def test_the_new_file_replaces_the_old_one_at_the_end(tmp_path: Path, to_disk: bool) -> None:
    path = tmp_path / "folder" / "report.json"
    with atomic_write(path, to_disk=to_disk) as first:
        first.write_text("first")
        assert first.suffix == path.suffix  # by which some libraries choose the format
        assert not path.exists()
        with atomic_write(path, to_disk=to_disk) as second:  # as in another container that shares the folder
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    with suppress(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("disk full")
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_a_pipe_or_an_open_file_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    """Replacing /dev/null by a file, which root may do, breaks every other program."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as temporary:
        temporary.write_text("content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
    with (tmp_path / "output.txt").open("w") as opened, atomic_write(Path(f"/dev/fd/{opened.fileno()}")) as temporary:
        temporary.write_text("more")
    assert (tmp_path / "output.txt").read_text() == "more"


@pytest.mark.parametrize(
    ("module", "program"),
    [(None, "multi-dnn"), ("multi_dnn_ros.cli.main", "multi-dnn"), ("pytest.__main__", "multi-dnn"),
     ("multi_dnn_ros.settings.__main__", "python -m multi_dnn_ros.settings")],
)  # fmt: skip
def test_results_record_the_command(module: str | None, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["whatever", "measure", "two words"])
    found = provenance()
    assert found["command"] == f"{program} measure 'two words'"
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["numpy"][0].isdecimal()


def test_a_table_has_aligned_columns() -> None:
    assert table(["a", "long"], [["1234", "b"]]) == "| a    | long |\n| ---- | ---- |\n| 1234 | b    |"


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
    assert here.poll(60.0)
    child = psutil.Process(here.recv())
    parent.kill()
    parent.join()
    try:
        until(lambda: not runs(child), "the end of a process without a parent", 60.0)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def test_a_child_of_a_parent_that_has_ended_does_not_start() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    program = (
        f"from multi_dnn_ros.common.processes import die_with_parent; die_with_parent({ended.pid}); print('started')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (72, "")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_is_an_interrupt_but_not_under_nohup(ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    raised = []
    try:
        for number in (signal.SIGHUP, signal.SIGTERM):
            try:
                with interrupts():
                    os.kill(os.getpid(), number)
            except KeyboardInterrupt:
                raised.append(number)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert raised == [signal.SIGTERM] if ignored else [signal.SIGHUP, signal.SIGTERM]
