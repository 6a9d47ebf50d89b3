"""An engine process in normal operation, and with wrong settings, inputs and DNNs."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import fake_pipelines as fake
import numpy as np
import psutil
import pytest
from engine_rig import Rig, same, thread_nice
from fake_pipelines import settings

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build, messages
from multi_dnn_ros.vision.results import Detections, Lanes

Make = Callable[..., Rig]


@pytest.mark.usefixtures("new_interpreters")
def test_the_whole_life_of_a_process(rig: Make) -> None:
    """One process for many checks, because starting one takes seconds."""
    engine = rig("object", "mask", cameras=("front", "rear"))
    engine.ready()
    assert "torchvision" not in Path(f"/proc/{engine.process.pid}/maps").read_text()  # which only other builds need
    _check_configuring(engine)
    engine.process.send(messages.Start({"object": {"score_threshold": 0.3}}))
    _check_results(engine)
    _check_that_only_requested_dnns_answer(engine)
    _check_raising_stages(engine)
    _check_updates(engine)
    _check_stop_and_start(engine)
    _check_isolation(engine)
    engine.process.kill("the engine was closed")
    end = engine.end()
    assert end.cause == "the engine was closed"
    assert engine.process.wait(0)
    assert not psutil.pid_exists(engine.process.pid)
    engine.process.send(messages.Start({}))  # no effect
    engine.process.kill("too late")
    assert engine.ends == [end]


def _check_configuring(engine: Rig) -> None:
    refused = engine.configure(fake.build_wrong)
    assert refused == messages.Refused("parameter dnn.object.model is 'nothing'\nand another line", expected=True)
    refused = engine.configure(fake.build_broken)
    assert not refused.expected
    assert "KeyError: 'broken'" in refused.text
    assert "build_broken" in refused.text
    description = engine.configure().description
    assert description.device == "cpu"
    assert description.dnns["object"].cameras == ("front", "rear")
    reports = [message.progress for message in engine.all(messages.Progressed)]
    assert [(progress.ready, progress.total) for progress in reports][:2] == [(1, 2), (2, 2)]


def _check_results(engine: Rig) -> None:
    for camera, size in (("front", (48, 64)), ("rear", (720, 1280)), ("front", (1, 1))):
        results = engine.outcomes(200, camera, size)
        height, width = size
        expected = Detections(
            np.array([[0, 0, width, height]], np.float32),
            np.array([200 / 255], np.float32),
            np.zeros(1, np.int64),
            ("thing", "other"),
        )
        assert same(results["object"], expected)
        assert isinstance(results["mask"], Lanes)
        np.testing.assert_array_equal(results["mask"].mask, np.full(size, 200, np.uint8))
    answers = {message.dnn: message for message in engine.all(messages.FrameResult) if message.number == 2}
    assert answers["mask"].large == (720 * 1280,)
    assert answers["object"].large == ()
    assert answers["object"].timing.decode_ns == 2_000_000
    assert answers["object"].timing.arrival_to_result_ns > 3_000_000
    assert len(engine.outcomes(fake.MANY)["object"]) == 10_000  # too large for the slot
    for _ in range(30):  # more than there are slots
        assert len(engine.outcomes(100)["object"]) == 1


def _check_that_only_requested_dnns_answer(engine: Rig) -> None:
    number, slot = engine.offer(200, dnns=("mask",))
    engine.until(lambda: any(answer.number == number for answer in engine.all(messages.FrameResult)), "answer")
    slot.release()
    assert isinstance(engine.outcomes(200)["object"], Detections)  # it answers in order
    assert [message.dnn for message in engine.all(messages.FrameResult) if message.number == number] == ["mask"]


def _check_raising_stages(engine: Rig) -> None:
    for value, text in ((fake.RAISE, "this image raises"), (fake.NO_MEMORY, "Tried to allocate 20.00 GiB")):
        lost = engine.outcomes(value)["object"]
        assert isinstance(lost, messages.FrameDropped)
        assert lost.reason is DropReason.DNN_ERROR
        assert text in lost.message

    def failures() -> list[int]:
        return [failure.consecutive for failure in engine.failures() if failure.dnn == "object"]

    engine.until(lambda: failures() == [1, 2], "failures")  # reported after the frame
    assert len(engine.outcomes(200)["object"]) == 1
    assert engine.process.state.running_jobs() == {}


def _check_updates(engine: Rig) -> None:
    engine.process.send(messages.Update("object", "score_threshold", 0.99))
    assert len(engine.outcomes(200)["object"]) == 0
    engine.process.send(messages.Update("object", "max_age_ms", 1.0))
    lost = engine.outcomes(200)["object"]  # arrived 3 ms ago
    assert lost.reason is DropReason.TOO_OLD
    engine.process.send(messages.Update("object", "max_age_ms", 0.0))
    engine.process.send(messages.Update("object", "score_threshold", 0.0))


def _check_stop_and_start(engine: Rig) -> None:
    numbers = [engine.offer(fake.SLOW)[0] for _ in range(2)]
    stopped = engine.answer(messages.Stop(5.0), messages.Stopped)
    assert stopped.hanging == ()
    position = engine.messages.index(stopped)
    settled = [
        (message.number, message.dnn)
        for message in engine.messages[:position]
        if isinstance(message, (messages.FrameResult, messages.FrameDropped)) and message.number in numbers
    ]
    assert sorted(settled) == sorted((number, dnn) for number in numbers for dnn in ("mask", "object"))
    lost = engine.outcomes(200)["object"]
    assert lost.reason is DropReason.SHUTDOWN
    engine.process.send(messages.Start({}))
    assert len(engine.outcomes(200)["object"]) == 1


def _check_isolation(engine: Rig) -> None:
    """No ROS, no network, signals for the node have no effect; heartbeat and reports continue."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.process.pid, number)
    assert len(engine.outcomes(200)["object"]) == 1
    process = psutil.Process(engine.process.pid)
    kinds = {connection.type for connection in process.net_connections(kind="inet")}
    assert kinds == set()
    maps = Path(f"/proc/{engine.process.pid}/maps").read_text()
    assert "cyclonedds" not in maps
    assert "rclpy" not in maps
    assert "libtorch" in maps
    heartbeat = engine.process.state.heartbeat_ns()
    reports = len(engine.all(messages.Report))
    engine.until(lambda: len(engine.all(messages.Report)) > reports + 1, "Memory")
    assert engine.process.state.heartbeat_ns() > heartbeat
    assert engine.all(messages.Report)[-1].memory["resident memory (bytes)"] > 10**8
    assert engine.all(messages.Report)[-1].ended_threads == ()


def test_configuring_in_the_background_at_low_priority_and_its_output(
    rig: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = rig("object")
    assert isinstance(engine.configure(fake.build_talking, in_background=True), messages.Configured)
    _check_priorities(engine)
    (logged,) = (message for message in engine.all(messages.Logged) if "logged" in message.text)
    assert (logged.level, logged.name) == (logging.WARNING, "multi_dnn_ros.test")
    engine.process.kill("the engine was closed")
    tail = engine.end().output_tail.splitlines()
    position = tail.index("printed")
    assert tail[position + 1] == "written to stderr"
    assert "".join(tail[position + 2 :]) == "." * 25_000  # a line without an end
    assert len(tail) == 30
    assert "[engine test] printed\n" in capfd.readouterr().err


def _check_priorities(engine: Rig) -> None:
    assert "nice 19" in [message.progress.text for message in engine.all(messages.Progressed)]
    engine.process.send(messages.Start({}))
    engine.outcomes(200)
    nice = thread_nice(engine.process.pid)
    assert nice.pop(engine.process.pid) == 19  # the main thread, which configures
    serving = [value for value in nice.values() if value == psutil.Process().nice()]
    assert len(serving) >= 4  # heartbeat, receive, report, DNN


def test_the_threads_of_a_session_prepared_in_the_background_have_the_priority_of_serving(rig: Make) -> None:
    """They run the DNNs after a model swap, and no unprivileged process can lower a nice value again."""
    engine = rig("object")
    assert isinstance(engine.configure(fake.build_with_session, in_background=True), messages.Configured)
    lines = [message.progress.text.split() for message in engine.all(messages.Progressed)]
    (started,) = ([int(thread) for thread in words[1:]] for words in lines if words[:1] == ["started"])
    nice = thread_nice(engine.process.pid)
    assert nice[engine.process.pid] == 19  # the main thread, which configures
    serving = psutil.Process().nice()
    assert [nice.get(thread) for thread in started].count(serving) == 2  # besides the thread that calls the session


def test_a_build_that_cannot_be_pickled_raises_in_the_caller(rig: Make) -> None:
    engine = rig("object")
    with pytest.raises((AttributeError, TypeError)):
        engine.process.send(messages.Configure(settings("object"), ("object",), lambda config, progress: None))


def test_the_imports_before_configuring_depend_on_the_build() -> None:
    assert default_build.modules_of(default_build.build) == default_build.MODULES
    assert default_build.modules_of(fake.build) == ("fake_pipelines",)
