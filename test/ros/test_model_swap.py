"""Models that are swapped by parameters while the node is configured, with real engine processes."""

from __future__ import annotations

import os
import signal
import time

import pytest
from engine_faults import engine_pids
from node_bench import Bench
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from swap_pipelines import LONG_S
from swap_rig import Rig
from test_diagnostics_page import documented

pytestmark = pytest.mark.usefixtures("forked_engines")

OK, WARN = 0, 1


@pytest.fixture
def rig(bench: Bench) -> Rig:
    return Rig(bench).activate()


def test_the_new_model_takes_over_between_two_frames(rig: Rig) -> None:
    previous = rig.pid()
    rig.swap("1")
    rig.wait_class("1")
    rig.wait_results()
    status = rig.wait_status("object took over after")
    assert status.level == OK
    assert status.by_key["settings"] == "dnn.object.model = '1'"
    assert set(status.by_key) == documented("model swap")
    classes = rig.classes()
    assert classes == sorted(classes), "the previous model, then the new one"
    assert set(rig.classes("pedestrian")) == {"0"}
    rig.until(lambda: rig.pid() != previous and engine_pids() == [rig.pid()], "the end of the previous process")
    rig.check_accounts()
    assert rig.drops("object") | rig.drops("pedestrian") <= {"overwritten"}
    assert rig.value("dnn.object.model") == "1"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("wrong", "parameter dnn.object.model is '1,wrong': not a model of this test"),
        ("abort", "the new engine process was lost"),
        ("lanes", "the results of object would be lanes, but its topics are those of detections"),
    ],
)
def test_a_model_that_fails_leaves_the_former_one(rig: Rig, word: str, reason: str) -> None:
    previous = rig.pid()
    rig.swap(f"1,{word}")
    status = rig.wait_status("failed, the previous settings stay in use")
    assert status.level == WARN
    assert reason in status.message
    assert rig.value("dnn.object.model") == "builtin:object", "the parameter is that of the model that is served"
    rig.until(lambda: engine_pids() == [previous], "the end of the new process")
    rig.wait_results()
    assert set(rig.classes()) == {"0"}
    rig.check_accounts()
    assert rig.drops("object") | rig.drops("pedestrian") <= {"overwritten"}
    rig.swap("1")
    rig.wait_class("1")


def test_impossible_changes_are_refused_at_once(rig: Rig) -> None:
    for name, value, reason in (
        ("dnn.object.model", "missing.onnx", "parameter dnn.object.model is 'missing.onnx': there is no such file"),
        ("dnn.object.model", "", "allowed: not empty"),
        ("dnn.object.track", True, "dnn.object.track is read-only while the node is configured; first `ros2 life"),
        ("dnn.object.cameras", ["front", "rear"], "read-only while the node is configured"),
        ("policy", "edf", "read-only while the node is configured"),
    ):
        accepted, text = rig.bench.set(name, value)
        assert not accepted
        assert reason in text
    assert rig.status().level == -1, "there was no swap"


def test_without_engine_processes_the_model_is_read_only(bench: Bench) -> None:
    bench.node()
    assert bench.change("configure")
    accepted, reason = bench.set("dnn.object.model", "1")
    assert not accepted
    assert "with isolation 'none' there is no engine process that could be replaced" in reason
    assert bench.change("cleanup")
    assert bench.set("dnn.object.model", "1") == (True, "")


def test_parameters_of_one_request_are_one_swap(rig: Rig) -> None:
    values = [Parameter("dnn.object.model", value="1"), Parameter("dnn.object.jobs", value=2),
              Parameter("dnn.pedestrian.model", value="1")]  # fmt: skip
    request = SetParametersAtomically.Request(parameters=[value.to_parameter_msg() for value in values])
    response = rig.bench.call(SetParametersAtomically, "/multi_dnn/set_parameters_atomically", request)
    assert response.result.successful
    rig.wait_class("1")
    status = rig.wait_status("object, pedestrian took over")
    assert status.by_key["settings"] == ("dnn.object.model = '1', dnn.object.jobs = 2, dnn.pedestrian.model = '1'")
    rig.until(lambda: rig.classes("pedestrian")[-1] == "1", "the new model of pedestrian")
    rig.check_accounts()


def test_a_request_back_to_the_served_model_is_no_swap(rig: Rig) -> None:
    previous = rig.pid()
    for model in ("1", "builtin:object"):  # the second one arrives before the swap of the first has begun
        assert rig.node.set_parameters([Parameter("dnn.object.model", value=model)])[0].successful
    rig.wait_results(10)
    assert rig.status().level == -1
    assert (rig.pid(), rig.value("dnn.object.model")) == (previous, "builtin:object")
    rig.swap("1")
    rig.wait_class("1")


def test_runtime_parameters_reach_both_processes(rig: Rig) -> None:
    rig.swap(rig.held("1"))
    rig.wait_status("preparing")
    assert rig.bench.set("dnn.object.score_threshold", 0.9) == (True, "")
    rig.until(lambda: rig.classes()[-1] == "", "no boxes of the previous process")
    assert "preparing" in rig.status().message
    rig.release()
    rig.wait_status("took over")
    rig.wait_results()
    assert rig.classes()[-1] == ""
    assert "1" not in rig.classes()
    assert rig.bench.set("dnn.object.score_threshold", 0.5) == (True, "")
    rig.wait_class("1")
    rig.check_accounts()


@pytest.mark.parametrize("which", ["new", "previous", "both"])
def test_processes_that_are_killed_during_a_swap(rig: Rig, which: str) -> None:
    previous = rig.pid()
    rig.swap(rig.held("1"))
    rig.wait_status("preparing")
    rig.until(lambda: len(engine_pids()) == 2, "the new process")
    (new,) = set(engine_pids()) - {previous}
    for pid in {"new": [new], "previous": [previous], "both": [previous, new]}[which]:
        os.kill(pid, signal.SIGKILL)
    rig.release()
    if which == "previous":
        rig.wait_status("took over")
        rig.wait_class("1")
    else:
        status = rig.wait_status("failed")
        assert "the new engine process was lost: killed by SIGKILL" in status.message
        rig.until(lambda: rig.pid() in engine_pids() and rig.pid() != new, "a process with the previous model")
        rig.wait_results()
        assert set(rig.classes()) == {"0"}
    rig.until(lambda: engine_pids() == [rig.pid()], "a single engine process")
    rig.check_accounts()
    assert rig.drops("object") <= {"overwritten", "engine_lost"}


def test_cleanup_during_a_swap_leaves_nothing(rig: Rig) -> None:
    rig.swap("1,long")
    rig.wait_status("preparing object: compiling job")
    begin = time.monotonic()
    assert rig.bench.change("deactivate")
    deactivated = time.monotonic()
    assert rig.bench.change("cleanup")
    for took_s in (deactivated - begin, time.monotonic() - deactivated):
        assert took_s < LONG_S / 4, "it does not wait for the new process"
    assert engine_pids() == []
    assert rig.value("dnn.object.model") == "1,long", "it applies when the node is configured again"
    rig.bench.until(lambda: rig.bench.status("node").message == "unconfigured", "the status")
    assert rig.bench.set("dnn.object.model", "1") == (True, "")
    assert rig.bench.change("configure")
    assert rig.bench.change("activate")
    rig.received["object"].clear()
    rig.until(lambda: rig.classes(), "results")
    assert set(rig.classes()) == {"1"}


def test_tracks_go_on_with_the_same_class_names_and_end_with_others(bench: Bench) -> None:
    rig = Rig(bench, **{"dnn.object.track": True, "dnn.object.score_threshold": 0.5}).activate()

    def last_id() -> str:
        return rig.received["object"][-1].detections[0].id

    rig.until(lambda: last_id() == "1", "an identity")
    rig.swap("0,brief")
    rig.wait_status("took over")
    rig.wait_results()
    assert last_id() == "1"
    rig.swap("0,renamed")
    rig.until(lambda: last_id() == "2", "a new identity")
    rig.check_accounts()
