"""Engine processes: what they compute and report, how they end, and that nothing is left of them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_pipelines as fake
import numpy as np
import psutil
import pytest
from engine_rig import Rig, same
from fake_pipelines import settings
from waiting import runs, until

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import engine_process, messages
from multi_dnn_ros.serving.engine_process import Engine, oom_kills
from multi_dnn_ros.vision.results import Detections, Lanes

Make = Callable[..., Rig]


@pytest.fixture
def rig() -> Iterator[Make]:
    """Makes engine processes, and ends them."""
    rigs: list[Rig] = []

    def make(*dnns: str, **parameters: Any) -> Rig:
        rigs.append(Rig(settings(*(dnns or ("object",)), **parameters)))
        return rigs[-1]

    yield make
    for one in rigs:
        one.close()


# -- in normal operation


def test_results_of_every_size_and_of_frames_that_raise(rig: Make) -> None:
    engine = rig("object", "mask", cameras=("front", "rear")).serve()
    for camera, (height, width) in (("front", (48, 64)), ("rear", (720, 1280)), ("front", (1, 1))):
        found = engine.outcomes(200, camera, (height, width))
        box, score = np.array([[0, 0, width, height]], np.float32), np.array([200 / 255], np.float32)
        assert same(found["object"], Detections(box, score, np.zeros(1, np.int64), ("thing", "other")))
        assert isinstance(found["mask"], Lanes)
        np.testing.assert_array_equal(found["mask"].mask, np.full((height, width), 200, np.uint8))
    for _ in range(30):  # more than there are slots
        assert len(engine.outcomes(100)["object"]) == 1
    for value, text in ((fake.RAISE, "this image raises"), (fake.NO_MEMORY, "Tried to allocate 20.00 GiB")):
        lost = engine.outcomes(value)["object"]
        assert lost.reason is DropReason.DNN_ERROR
        assert text in lost.message
    engine.ends.wait(lambda: [it.consecutive for it in engine.ends.failures if it.dnn == "object"] == [1, 2])
    assert len(engine.outcomes(200)["object"]) == 1
    assert engine.engine.state.running_jobs() == {}


def test_parameters_are_updated_and_signals_for_the_node_ignored(rig: Make) -> None:
    engine = rig().serve()
    engine.engine.send(messages.Update("object", {"score_threshold": 0.99}))
    assert len(engine.outcomes(200)["object"]) == 0
    engine.engine.send(messages.Update("object", {"max_age_ms": 1e-6}))
    assert engine.outcomes(200)["object"].reason is DropReason.TOO_OLD
    engine.engine.send(messages.Update("object", {"max_age_ms": 0.0, "score_threshold": 0.0}))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.engine.pid, number)
    assert len(engine.outcomes(200)["object"]) == 1
    process, heartbeat = psutil.Process(engine.engine.pid), engine.engine.state.heartbeat_ns()
    assert {connection.type for connection in process.net_connections(kind="inet")} == set()
    assert "rclpy" not in Path(f"/proc/{process.pid}/maps").read_text()
    assert engine.engine.memory()["resident memory (bytes)"] > 10**8
    until(lambda: engine.engine.state.heartbeat_ns() > heartbeat, "heartbeats")


def test_configuring_in_the_background_at_low_priority_and_what_it_logs(
    rig: Make, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The threads that run the DNNs after a swap keep the priority: no unprivileged process can raise it again."""
    caplog.set_level(logging.INFO, "multi_dnn_ros")
    engine = rig()
    engine.configure(fake.build_with_session, in_background=True)
    assert "nice 19" in engine.progress
    assert "printed\n" in capfd.readouterr().err
    until(lambda: "logged" in caplog.messages, "the log record")
    (record,) = (record for record in caplog.records if record.message == "logged")
    assert (record.levelno, record.name) == (logging.INFO, "multi_dnn_ros.test")
    (started,) = ([int(thread) for thread in text.split()[1:]] for text in engine.progress if text.startswith("start"))
    engine.outcomes(200)
    nice = {thread.id: psutil.Process(thread.id).nice() for thread in psutil.Process(engine.engine.pid).threads()}
    assert nice.pop(engine.engine.pid) == 19  # the main thread, which configures
    serving = psutil.Process().nice()
    assert [nice.get(thread) for thread in started].count(serving) == 2  # besides the thread that calls the session
    assert [*nice.values()].count(serving) >= 5  # heartbeat, receive and DNN, too


# -- how it ends


def test_a_crash_while_configuring(rig: Make) -> None:
    engine = rig()
    end = engine.configure(fake.build_crashing)
    assert end.cause == "killed by SIGABRT"
    texts = list(engine.progress)
    assert texts[0] == "about to crash"  # delivered before the end
    children = [int(text.split()[1]) for text in texts[1:]]
    assert children
    until(lambda: not any(runs(child) for child in children), "end of the children")


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (fake.SEGFAULT, "killed by SIGSEGV"),
        (fake.GPU_FAULT, "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_dnn_ends_the_process(rig: Make, value: int, cause: str) -> None:
    engine = rig().serve()
    engine.offer(value)
    assert engine.end().cause == cause
    assert set(engine.engine.state.running_jobs()) == {"object"}
    assert [(drop.reason, drop.message) for drop in engine.ends.drops] == [(DropReason.ENGINE_LOST, cause)]


def test_native_calls_that_never_return_and_a_process_that_receives_nothing(rig: Make) -> None:
    engine = rig().serve()
    state = engine.engine.state
    engine.offer(fake.BUSY)  # without the GIL: heartbeats continue
    (job_ns,) = until(lambda: list(state.running_jobs().values()), "the job")
    until(lambda: state.heartbeat_ns() - job_ns > 5 * 10**8, "heartbeats")
    engine.engine._channel.shutdown()
    assert "lost the connection" in engine.end().cause
    engine = rig().serve()
    engine.offer(fake.HOLD_GIL)
    until(lambda: time.monotonic_ns() - engine.engine.state.heartbeat_ns() > 10**9, "missing heartbeats")
    begin = time.monotonic()
    while not engine.engine.wait(0.0):
        engine.engine.send(messages.Update("object", {"priority": 1}))  # never raises
        assert time.monotonic() - begin < 30.0
    assert engine.end().cause == "hung: it received no message for 1 s"


def test_a_sigkill_by_the_kernel_is_distinguished_from_others(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, other, third = rig(), rig(), rig()
    os.kill(engine.engine.pid, signal.SIGKILL)
    assert engine.end().cause == "killed by SIGKILL"
    third.engine.kill("the engine was closed")
    third.engine.kill("too late")
    assert third.end().cause == "the engine was closed"
    before = oom_kills()
    monkeypatch.setattr(engine_process, "oom_kills", lambda: before + 1)
    os.kill(other.engine.pid, signal.SIGKILL)
    assert "the kernel's out-of-memory killer" in other.end().cause


def test_an_engine_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"engine test cannot be started: .*/nowhere/python"):
        Engine("engine test", "cpu", ("object",), {}, engine_process.Events())
    assert len(os.listdir("/proc/self/fd")) <= before
