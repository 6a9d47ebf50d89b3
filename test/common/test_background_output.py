"""Log lines are written in a thread, in their order; nobody waits for an output that is not read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from waiting import until

from multi_dnn_ros.common.background_output import BackgroundOutput


class Console:
    """A list of lines that is written only while it is open."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.open = threading.Event()
        self.entered = threading.Event()

    def write(self, text: str) -> None:
        self.entered.set()
        assert self.open.wait(60.0)
        self.lines.append(text)

    def dropped(self, count: int) -> None:
        self.write(f"{count} dropped")


@pytest.fixture
def console() -> Iterator[Console]:
    console = Console()
    yield console
    console.open.set()


def test_until_it_is_started_the_caller_writes(console: Console) -> None:
    console.open.set()
    output = BackgroundOutput()
    output.submit(console.write, "now")
    assert console.lines == ["now"]
    assert output.close(0.0)


def test_all_lines_of_all_threads_are_written_in_their_order(console: Console) -> None:
    output = BackgroundOutput()
    output.start()
    console.open.set()
    threads = [
        threading.Thread(target=lambda name=name: [output.submit(console.write, f"{name} {i}") for i in range(500)])
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert output.close(60.0)
    for name in "abc":
        assert [line for line in console.lines if line.startswith(name)] == [f"{name} {i}" for i in range(500)]
    assert len(console.lines) == 1500


def test_a_writer_that_logs_itself_writes_at_once(console: Console) -> None:
    """As a handler that passes a record to rclpy, which prints it."""
    output = BackgroundOutput()

    def outer(text: str) -> None:
        console.write(text)
        output.submit(console.write, f"{text}, inner")

    output.start()
    output.submit(outer, "first")
    output.submit(console.write, "second")
    console.open.set()
    assert output.close(60.0)
    assert console.lines == ["first", "first, inner", "second"]


def test_lines_that_do_not_fit_are_dropped_and_counted_in_their_place(console: Console) -> None:
    output = BackgroundOutput(console.dropped, max_characters=10_000)
    output.start()
    for number in range(200):  # does not block
        output.submit(console.write, f"line {number}")
    console.open.set()
    until(lambda: console.lines and console.lines[-1].endswith("dropped"), "the number of dropped lines")
    output.submit(console.write, "afterwards")
    assert output.close(60.0)
    written = [line for line in console.lines if line.startswith("line")]
    assert 10 < len(written) < 100
    assert written == [f"line {number}" for number in range(len(written))]
    assert console.lines[len(written) :] == [f"{200 - len(written)} dropped", "afterwards"]


def test_the_number_of_dropped_lines_is_printed(console: Console, capfd: pytest.CaptureFixture[str]) -> None:
    output = BackgroundOutput(max_characters=1)
    output.start()
    for _ in range(4):
        output.submit(console.write, "line")
    console.open.set()
    assert output.close(60.0)
    assert console.lines == ["line"]
    assert capfd.readouterr().err == "3 log lines were dropped: the reader of the output was too slow\n"


def test_a_line_longer_than_the_queue_is_written_if_nothing_waits(console: Console) -> None:
    console.open.set()
    output = BackgroundOutput(max_characters=100)
    output.start()
    output.submit(console.write, "x" * 1000)
    assert output.close(60.0)
    assert console.lines == ["x" * 1000]


def test_an_error_of_a_writer_loses_only_its_line(console: Console) -> None:
    console.open.set()
    output = BackgroundOutput()
    output.start()
    output.submit(lambda text: console.write(text[10]), "short")
    output.submit(console.write, "next")
    assert output.close(60.0)
    assert console.lines == ["next"]


def test_closing_does_not_wait_longer_than_the_limit(console: Console) -> None:
    output = BackgroundOutput()
    output.start()
    output.submit(console.write, "stuck")
    assert console.entered.wait(60.0)
    assert not output.close(0.01)
    assert output.is_blocked
    output.submit(console.write, "dropped")  # does not block
    assert not output.close(0.01)


def test_it_can_be_started_again(console: Console) -> None:
    console.open.set()
    output = BackgroundOutput()
    for number in range(3):
        output.start()
        output.submit(console.write, str(number))
        assert output.close(60.0)
    assert console.lines == ["0", "1", "2"]


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_a_full_pipe_is_waited_for_before_the_writer_is_called(stream: str) -> None:
    """Rclpy would hold the interpreter's lock in a write that blocks."""
    code = f"""
import os, sys
from multi_dnn_ros.common.background_output import BackgroundOutput
os.environ["RCUTILS_LOGGING_USE_STDOUT"] = "{int(stream == "stdout")}"
output = BackgroundOutput()
output.start()
called = []
output.submit(called.append, "x")
done = not output.close(0.5) and not called
os._exit(0 if done else 1)
"""
    reader, writer = os.pipe()
    try:
        fill(writer)
        arguments: dict[str, int] = {stream: writer}
        assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False, **arguments).returncode == 0
    finally:
        os.close(reader)
        os.close(writer)


def fill(writer: int) -> None:
    """Fill a pipe through an open file of its own, because O_NONBLOCK belongs to the open file."""
    own = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(own, b"x" * 512)
    except BlockingIOError:
        pass
    finally:
        os.close(own)
