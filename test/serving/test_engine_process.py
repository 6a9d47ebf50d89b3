"""What an engine process does while all goes well, and when its input, its DNNs or the node's wishes are wrong."""

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
from engine_rig import Rig, same
from fake_pipelines import settings

from multi_dnn_ros.benchmark.faults import ExitingBuild
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build, wire
from multi_dnn_ros.vision.results import Detections, Lanes

Make = Callable[..., Rig]


def test_from_start_to_end(rig: Make) -> None:
    """One process for many questions: to start one takes seconds."""
    engine = rig("object", "mask", cameras=("front", "rear"))
    assert engine.ready().versions["torch"]
    _looks_at_settings(engine)
    _configures(engine)
    engine.answer(wire.Start({"object": {"score_threshold": 0.3}}), wire.Started)
    _answers(engine)
    _leaves_to_others_what_is_not_asked_of_it(engine)
    _loses_frames_of_a_stage_that_raises(engine)
    _takes_updates(engine)
    _stops_and_starts_again(engine)
    _stays_by_itself(engine)
    engine.process.send(wire.Quit())
    end = engine.end()
    assert (end.exit_code, end.signal, end.requested, end.under_way) == (0, None, True, ())
    assert engine.process.wait(0)
    assert not psutil.pid_exists(engine.process.pid)
    engine.process.send(wire.Quit())  # nobody takes it, and nothing happens
    engine.process.kill("too late")
    assert engine.ends == [end]


def _looks_at_settings(engine: Rig) -> None:
    wrong = engine.config.model_copy(deep=True)
    wrong.dnns["object"].model = "nothing.onnx"
    problems = engine.answer(wire.Check(wrong), wire.Checked).problems
    assert "nothing.onnx" in problems[0]


def _configures(engine: Rig) -> None:
    refused = engine.configure(fake.build_wrong)
    assert refused == wire.Refused("parameter dnn.object.model is 'nothing'\nand another line", expected=True)
    refused = engine.configure(fake.build_broken)
    assert not refused.expected
    assert "KeyError: 'broken'" in refused.text
    assert "build_broken" in refused.text
    description = engine.configure().description
    assert description.device == "cpu"
    assert description.dnns["object"].cameras == ("front", "rear")
    told = [message.progress for message in engine.all(wire.Progressed)]
    assert [(progress.ready, progress.total) for progress in told][:2] == [(1, 2), (2, 2)]


def _answers(engine: Rig) -> None:
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
    answers = {message.dnn: message for message in engine.all(wire.Answer) if message.number == 2}
    assert answers["mask"].large == (720 * 1280,)
    assert answers["object"].large == ()
    assert answers["object"].timing.decode_ns == 2_000_000
    assert answers["object"].timing.end_to_end_ns > 3_000_000
    assert len(engine.outcomes(fake.MANY)["object"]) == 10_000  # has no room in the slot
    for _ in range(30):  # more than there are slots
        assert len(engine.outcomes(100)["object"]) == 1


def _leaves_to_others_what_is_not_asked_of_it(engine: Rig) -> None:
    number, slot = engine.offer(200, dnns=("mask",))
    engine.until(lambda: any(answer.number == number for answer in engine.all(wire.Answer)), "answer")
    slot.release()
    assert isinstance(engine.outcomes(200)["object"], Detections)  # its answers come in order
    assert [message.dnn for message in engine.all(wire.Answer) if message.number == number] == ["mask"]


def _loses_frames_of_a_stage_that_raises(engine: Rig) -> None:
    for value, text in ((fake.RAISE, "this image raises"), (fake.NO_MEMORY, "Tried to allocate 20.00 GiB")):
        lost = engine.outcomes(value)["object"]
        assert isinstance(lost, wire.Lost)
        assert lost.reason is DropReason.DNN_ERROR
        assert text in lost.message

    def failures() -> list[int]:
        return [failure.consecutive for failure in engine.failures() if failure.dnn == "object"]

    engine.until(lambda: failures() == [1, 2], "failures")  # told after the frame
    assert len(engine.outcomes(200)["object"]) == 1
    assert engine.process.board.under_way() == {}


def _takes_updates(engine: Rig) -> None:
    engine.process.send(wire.Update("object", "score_threshold", 0.99))
    assert len(engine.outcomes(200)["object"]) == 0
    engine.process.send(wire.Update("object", "max_age_ms", 1.0))
    lost = engine.outcomes(200)["object"]  # arrived 3 ms ago
    assert lost.reason is DropReason.TOO_OLD
    engine.process.send(wire.Update("object", "max_age_ms", 0.0))
    engine.process.send(wire.Update("object", "score_threshold", 0.0))


def _stops_and_starts_again(engine: Rig) -> None:
    numbers = [engine.offer(fake.SLOW)[0] for _ in range(2)]
    stopped = engine.answer(wire.Stop(5.0), wire.Stopped)
    assert stopped.hanging == ()
    place = engine.messages.index(stopped)
    settled = [
        (message.number, message.dnn)
        for message in engine.messages[:place]
        if isinstance(message, (wire.Answer, wire.Lost)) and message.number in numbers
    ]
    assert sorted(settled) == sorted((number, dnn) for number in numbers for dnn in ("mask", "object"))
    lost = engine.outcomes(200)["object"]
    assert lost.reason is DropReason.SHUTDOWN
    engine.answer(wire.Start({}), wire.Started)
    assert len(engine.outcomes(200)["object"]) == 1


def _stays_by_itself(engine: Rig) -> None:
    """No ROS, no network, no signals that are for the node; the board and the reports live."""
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
    beat = engine.process.board.last_beat_ns()
    reports = len(engine.all(wire.Memory))
    engine.until(lambda: len(engine.all(wire.Memory)) > reports + 1, "Memory")
    assert engine.process.board.last_beat_ns() > beat
    assert engine.all(wire.Memory)[-1].values["resident memory (bytes)"] > 10**8
    assert engine.all(wire.Memory)[-1].ended == ()


def test_configuring_in_the_background_and_what_it_writes(rig: Make, capfd: pytest.CaptureFixture[str]) -> None:
    engine = rig("object")
    assert isinstance(engine.configure(fake.build_talking, in_background=True), wire.Configured)
    _leaves_the_cpu_to_others(engine)
    (logged,) = (message for message in engine.all(wire.Logged) if "logged" in message.text)
    assert (logged.level, logged.name) == (logging.WARNING, "multi_dnn_ros.test")
    engine.process.send(wire.Quit())
    tail = engine.end().stderr_tail.splitlines()
    place = tail.index("printed")
    assert tail[place + 1] == "written to stderr"
    assert "".join(tail[place + 2 :]) == "." * 25_000  # a line without an end
    assert len(tail) == 30
    assert "[engine test] printed\n" in capfd.readouterr().err


def _leaves_the_cpu_to_others(engine: Rig) -> None:
    assert "nice 19" in [message.progress.text for message in engine.all(wire.Progressed)]
    engine.answer(wire.Start({}), wire.Started)
    engine.outcomes(200)
    nice = {}
    for thread in Path(f"/proc/{engine.process.pid}/task").iterdir():
        nice[int(thread.name)] = os.getpriority(os.PRIO_PROCESS, int(thread.name))
    low = [thread for thread, value in nice.items() if value > 0]
    assert engine.process.pid in low  # the main thread, which configures
    engines = [thread for thread, value in nice.items() if value == os.getpriority(os.PRIO_PROCESS, 0)]
    assert len(engines) >= 6  # heartbeat, receive, report, workers, DNN


def test_what_pickle_cannot_name_is_the_callers_mistake(rig: Make) -> None:
    engine = rig("object")
    with pytest.raises((AttributeError, TypeError)):
        engine.process.send(wire.Configure(settings("object"), ("object",), lambda config, progress: None))


def test_what_is_imported_before_configuring_follows_from_the_build() -> None:
    assert default_build.modules_of(default_build.build) == default_build.MODULES
    assert default_build.modules_of(fake.build) == ("fake_pipelines",)
    assert default_build.modules_of(ExitingBuild(default_build.build, "flag")) == default_build.MODULES
