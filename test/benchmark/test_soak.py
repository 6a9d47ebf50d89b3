"""A short soak through the command line, its schedule, and what its verdicts reject."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.node_config import flat_parameters
from multi_dnn_ros.benchmark.observation import NodeSample, Receipts
from multi_dnn_ros.benchmark.soak import plan as planned
from multi_dnn_ros.benchmark.soak import verdicts
from multi_dnn_ros.benchmark.soak.actions import Actions
from multi_dnn_ros.benchmark.soak.plan import Event, SoakPlan, Window, Windows, soak_config
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import OutputConfig

CONFIG = read_params_file(config_file("multi_dnn.yaml"))
HOUR = SoakPlan(3600.0)
WINDOWS = Windows(Window(10.0, 20.0), Window(20.0, 30.0))
KILL_EVERY_S = st.just(0.0) | st.floats(5.0, 700.0)
ONE_DNN = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {object: {backend: eager, jobs: 1}}
    diagnostics_period_s: 0.25
"""


def soak(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Exit code, figures, and notes of the verdicts that have failed, of a short run with one DNN."""
    parameters, output = tmp_path / "parameters.yaml", tmp_path / "soak.json"
    parameters.write_text(ONE_DNN)
    code = main(["benchmark", "soak", "--params-file", str(parameters), "--output", str(output),
                 "--plot", str(tmp_path / "soak.png"), "--logs", str(tmp_path / "logs"), *options])  # fmt: skip
    found = json.loads(output.read_text())
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
    return code, found, {verdict["name"]: verdict["note"] for verdict in found["verdicts"] if not verdict["passed"]}


@pytest.mark.long
def test_a_short_soak_has_exact_accounts_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, failed = soak(tmp_path, "--minutes", "0.34", "--seed", "7")
    assert code in (0, 1)  # latencies over some seconds on a busy machine say nothing
    always = {"streams with inexact accounts", "left behind by the node", "exceptions in the logs"}
    assert not failed.keys() & always, failed
    assert failed.get("end of the node", "exit code 0") == "exit code 0"  # however long it took
    assert len(found["streams"]) == 3
    assert all(counts["published"] > 0 for counts in found["streams"].values()), found["streams"]
    actions = found["actions"]
    assert sum(actions["kill engine"].values()) == 3
    assert actions["kill camera"] == actions["start camera"] == {"done": 3}
    assert actions["set"] == {"done": 18}
    assert actions["enable"] == {"done": 6}
    assert sum(counts["dropped"].get("switched_off", 0) for counts in found["streams"].values()) > 0
    (minute,) = found["minutes"]
    assert minute["samples"] > 10
    assert {"command", "versions", "machine"} <= found.keys()
    assert "streams with inexact accounts" in capsys.readouterr().out


@pytest.mark.long
def test_a_node_that_ends_by_itself_ends_the_run_with_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    perform = Actions.perform

    def kill_and_perform(actions: Actions, event: Event) -> None:
        actions._rig.node.send(signal.SIGKILL)
        perform(actions, event)

    monkeypatch.setattr(Actions, "perform", kill_and_perform)
    code, found, failed = soak(tmp_path, "--minutes", "0.25")
    assert code == 1
    assert "the node process ended with exit code -9" in failed["processes that ended by themselves"]
    assert "streams without a result at the end" in failed
    assert 0.0 < found["measured_s"] < found["plan"]["seconds"]
    assert "the run has not passed" in capsys.readouterr().err


def test_bad_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "soak", "--kill-every", "2"]) == 2
    assert "--kill-every is 2; allowed: 0, or at least 5 seconds" in capsys.readouterr().err
    path = tmp_path / "parameters.yaml"
    path.write_text("/**: {ros__parameters: {isolation: none}}\n")
    assert main(["benchmark", "soak", "--params-file", str(path)]) == 2
    assert "parameter isolation is none; this scenario needs process" in capsys.readouterr().err


# -- the schedule


def test_the_windows_of_an_hour_are_the_second_and_the_last_ten_minutes() -> None:
    assert HOUR.windows == Windows(Window(600.0, 1200.0), Window(3000.0, 3600.0))
    assert SoakPlan(720.0).windows == Windows(Window(240.0, 480.0), Window(480.0, 720.0))


@given(st.floats(15.0, 7200.0), KILL_EVERY_S)
def test_a_window_has_whole_rounds(seconds: float, kill_every_s: float) -> None:
    plan = SoakPlan(seconds, kill_every_s)
    window = plan.windows.reference
    rounds = (window.end_s - window.begin_s) / plan.round_s
    assert rounds == pytest.approx(round(rounds))
    assert rounds >= 1.0
    assert plan.round_s >= planned.MIN_ROUND_S


def test_events_are_those_of_the_seed_and_the_same_in_every_round() -> None:
    events = HOUR.events(CONFIG)
    assert events == SoakPlan(3600.0).events(CONFIG)
    assert events != SoakPlan(3600.0, seed=1).events(CONFIG)
    assert {event.action for event in events} == set(planned.ACTIONS)
    assert sum(event.action == planned.KILL_ENGINE for event in events) == 12
    first = [event for event in events if event.at_s < HOUR.round_s]
    second = [event for event in events if HOUR.round_s <= event.at_s < 2 * HOUR.round_s]
    assert [replace(event, at_s=0.0) for event in first] == [replace(event, at_s=0.0) for event in second]


@given(st.floats(15.0, 4000.0), KILL_EVERY_S, st.integers(0, 50))
@settings(max_examples=30)
def test_everything_is_restored_at_the_end(seconds: float, kill_every_s: float, seed: int) -> None:
    state: dict[tuple[str, str], Any] = {}
    events = SoakPlan(seconds, kill_every_s, seed=seed).events(CONFIG)
    for event in events:
        kind = "camera" if "camera" in event.action else event.action
        state[kind, event.target] = event.action if kind == "camera" else event.value
        assert 0.0 <= event.at_s < seconds
    for (kind, target), value in state.items():
        if kind == planned.SET:
            _, dnn, field = target.split(".")
            assert value == getattr(CONFIG.dnns[dnn], field)
        elif kind == planned.SWAP:
            assert value == CONFIG.dnns[target].model
        elif kind != planned.KILL_ENGINE:
            assert value == {planned.ENABLE: True, planned.WATCH: False, "camera": planned.START_CAMERA}[kind]
    replacing = {event.action for event in events} & {planned.KILL_ENGINE, planned.SWAP}
    assert replacing == ({planned.KILL_ENGINE, planned.SWAP} if kill_every_s > 0.0 else set())


def test_detecting_dnns_are_tracked_and_kills_are_not_blamed_on_a_dnn() -> None:
    found = soak_config(CONFIG, ["object"], SoakPlan(60.0))
    assert {name: dnn.track for name, dnn in found.dnns.items()} == {"lane": False, "object": True, "pedestrian": False}
    assert found.fault_window_s == 10.0
    assert soak_config(CONFIG, [], HOUR).fault_window_s == CONFIG.fault_window_s


def test_the_parameter_file_of_a_run_is_its_configuration(tmp_path: Path) -> None:
    outputs = {"people": OutputConfig(decoder="yolo"), "road": OutputConfig(decoder="drivable", score_threshold=0.5)}
    dnns = {**CONFIG.dnns, "object": CONFIG.dnns["object"].model_copy(update={"outputs": outputs})}
    changed = CONFIG.model_copy(update={"dnns": dnns})
    path = tmp_path / "parameters.yaml"
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": flat_parameters(changed)}}))
    assert read_params_file(path) == changed


# -- the verdicts

EXACT = {"offered": 10, "received": 10, "published": 7, "observed": 7, "pending": 0, "dropped": {"engine_lost": 3}}


@pytest.mark.parametrize(
    "change", [{"offered": 11}, {"received": 9}, {"published": 8}, {"observed": 6}, {"pending": 1}, {"dropped": {}}]
)
def test_a_frame_that_is_missing_in_one_count_fails(change: dict[str, Any]) -> None:
    assert verdicts.accounts({"lane on front": EXACT}).passed
    found = verdicts.accounts({"lane on front": EXACT, "lane on rear": {**EXACT, **change}})
    assert not found.passed
    assert "lane on rear: offered" in found.note
    assert not verdicts.accounts({}).passed


def samples(**growth: int) -> list[NodeSample]:
    """A sample per second for 30 s, to whose fields `growth` is added in the last window."""
    first = NodeSample(0.0, memory_bytes=1000, threads=10, files=20, gpu_bytes=500)
    last = replace(first, **{name: getattr(first, name) + more for name, more in growth.items()})
    return [replace(last if at >= 20 else first, at_s=float(at)) for at in range(30)]


@pytest.mark.parametrize(
    ("growth", "failed"),
    [
        ({}, []),
        ({"memory_bytes": 10}, []),
        ({"memory_bytes": 30}, ["growth of memory"]),
        ({"gpu_bytes": 20}, ["growth of GPU memory"]),
        ({"files": 1}, ["growth of file descriptors"]),
        ({"threads": 1}, ["growth of threads"]),
        ({"threads": -1}, []),
    ],
)
def test_each_leak_is_found(growth: dict[str, int], failed: list[str]) -> None:
    found = verdicts.resources(samples(**growth), 0.0, WINDOWS)
    assert [verdict.name for verdict in found if not verdict.passed] == failed
    assert not any(verdict.passed for verdict in verdicts.resources([], 0.0, WINDOWS))


def receipts(*latencies: tuple[float, float]) -> Receipts:
    """(time, latency in ms) of each result."""
    found = Receipts()
    for at_s, latency_ms in latencies:
        found.add(at_s, latency_ms)
    return found


def test_latency_that_grows_and_a_stream_that_falls_silent_fail() -> None:
    steady = receipts(*((at / 10.0, 50.0) for at in range(100, 300)))
    slower = receipts(*((at / 10.0, 50.0 if at < 200 else 60.0) for at in range(100, 300)))
    silent = receipts(*((at / 10.0, 50.0) for at in range(100, 200)))
    assert all(verdict.passed for verdict in verdicts.latency([steady], 0.0, WINDOWS))
    assert not any(verdict.passed for verdict in verdicts.latency([slower], 0.0, WINDOWS))
    assert verdicts.results({"a": steady}, 0.0, WINDOWS).passed
    found = verdicts.results({"a": steady, "b": silent}, 0.0, WINDOWS)
    assert not found.passed
    assert found.note == "b, 100 to 0"
    assert not verdicts.results({"a": steady, "b": Receipts()}, 0.0, WINDOWS).passed
    assert not verdicts.results({}, 0.0, WINDOWS).passed


def test_a_fault_is_answered_by_results_of_images_taken_after_it() -> None:
    early, late = receipts((10.02, 50.0), (10.5, 50.0)), receipts((12.0, 50.0))
    assert verdicts.answer_s([[early]], 10.0) == pytest.approx(0.5)  # the first image was taken before the fault
    assert verdicts.answer_s([[early], [late]], 10.0) == pytest.approx(2.0)
    assert verdicts.answer_s([[early], [Receipts()]], 10.0) is None
    assert verdicts.answered("a kill", [2.0, 29.0]).passed
    assert not verdicts.answered("a kill", [2.0, None]).passed
    assert not verdicts.answered("a kill", [31.0]).passed
    assert not verdicts.answered("a kill", []).passed


def test_a_verdict_without_a_figure_fails_and_is_null_in_json() -> None:
    found = verdicts.ended(0.5, -9)
    assert math.isnan(found.value)
    assert not found.passed
    assert found.described()["value"] is None
    assert verdicts.ended(0.5, 0).passed
    assert not verdicts.ended(4.0, 0).passed
