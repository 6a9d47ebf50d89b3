"""Engine processes without a supervisor: what they report, and how they end."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_pipelines as fake
import psutil
import pytest
from fake_host import WAIT_S
from waiting import until

from multi_dnn_ros.serving import engine_process, messages
from multi_dnn_ros.serving.descriptions import EngineDescription
from multi_dnn_ros.serving.engine_process import Engine, Events, oom_kills


class Process(Engine):
    """Serves the DNN `object`. progress: the texts of its reports."""

    def __init__(self) -> None:
        self.events: Events = queue.SimpleQueue()
        self.progress: list[str] = []
        super().__init__("engine test", "cpu", ("object",), {}, self.events, ("fake_pipelines",))

    def event(self, kind: type) -> Any:
        """The next message of this kind."""
        while not isinstance(message := self.events.get(timeout=WAIT_S)[1], kind):
            if isinstance(message, messages.Progress):
                self.progress.append(message.text)
        return message

    def configure(self, build: Any, *, in_background: bool = False) -> Process:
        self.send(messages.Configure(fake.settings("object"), ("object",), build, in_background))
        self.event(EngineDescription)
        return self


@pytest.fixture
def engine() -> Iterator[Process]:
    process = Process()
    yield process
    process.kill("the test is over")
    assert process.wait(WAIT_S)


def test_configuring_in_the_background_at_low_priority_and_what_it_logs(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """The threads that run the DNNs after a swap keep the priority: no unprivileged process can raise it again."""
    caplog.set_level(logging.INFO, "multi_dnn_ros")
    engine = request.getfixturevalue("engine").configure(fake.build_with_session, in_background=True)
    assert "nice 19" in engine.progress
    assert "printed\n" in capfd.readouterr().err
    until(lambda: "logged" in caplog.messages, "the log record")
    (record,) = (record for record in caplog.records if record.message == "logged")
    assert (record.levelno, record.name) == (logging.INFO, "multi_dnn_ros.test")
    (started,) = ([int(thread) for thread in text.split()[1:]] for text in engine.progress if text.startswith("start"))
    nice = {thread.id: psutil.Process(thread.id).nice() for thread in psutil.Process(engine.pid).threads()}
    assert nice.pop(engine.pid) == 19  # the main thread, which configures
    serving = psutil.Process().nice()
    assert [nice.get(thread) for thread in started].count(serving) == 2  # besides the thread that calls the session


def test_a_process_has_no_network_and_no_ros_beats_and_ignores_the_signals_for_the_node(engine: Process) -> None:
    engine.configure(fake.build)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.pid, number)
    heartbeat_ns = engine.state.heartbeat_ns()
    until(lambda: engine.state.heartbeat_ns() > heartbeat_ns, "heartbeats")
    assert psutil.Process(engine.pid).net_connections(kind="inet") == []
    assert "rclpy" not in Path(f"/proc/{engine.pid}/maps").read_text()
    assert engine.memory()["resident memory (bytes)"] > 10**8


def test_the_cause_of_the_end(engine: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, unconnected, killed, other = (Process() for _ in range(4))
    os.kill(engine.pid, signal.SIGKILL)
    assert engine.event(messages.Ended).cause == "killed by SIGKILL"
    unconnected._channel.shutdown()
    assert "lost the connection" in unconnected.event(messages.Ended).cause
    killed.kill("the engine was closed")
    killed.kill("too late")
    assert killed.event(messages.Ended).cause == "the engine was closed"
    os.kill(stopped.pid, signal.SIGSTOP)
    while not stopped.wait(0.0):
        stopped.send(messages.Update("object", {"priority": 1}))  # never raises
    assert stopped.event(messages.Ended).cause == "hung: it received no message for 1 s"
    before = oom_kills()
    monkeypatch.setattr(engine_process, "oom_kills", lambda: before + 1)
    os.kill(other.pid, signal.SIGKILL)
    assert "the kernel's out-of-memory killer" in other.event(messages.Ended).cause


def test_an_engine_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"engine test cannot be started: .*/nowhere/python"):
        Process()
    assert len(os.listdir("/proc/self/fd")) <= before
