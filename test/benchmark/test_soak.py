"""A short soak through the command line, its schedule, and what its verdicts reject."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.observation import NodeSample, Receipts
from multi_dnn_ros.benchmark.soak import plan as planned
from multi_dnn_ros.benchmark.soak import verdicts
from multi_dnn_ros.benchmark.soak.actions import Actions
from multi_dnn_ros.benchmark.soak.plan import Change, SoakPlan, Window
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.params_file import read_params_file

CONFIG = read_params_file(config_file("multi_dnn.yaml"))
HOUR = SoakPlan(3600.0)
ACTIONS = (planned.SET, planned.ENABLE, planned.SWAP, planned.WATCH, planned.RESTART_CAMERA, planned.KILL_ENGINE)
WINDOWS = (Window(10.0, 20.0), Window(20.0, 30.0))
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
                 "--logs", str(tmp_path / "logs"), *options])  # fmt: skip
    found = json.loads(output.read_text())
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
    assert {done["action"] for done in found["actions"]} == set(ACTIONS)
    assert [done for done in found["actions"] if done["problem"]] == []
    assert sum(counts["dropped"].get("switched_off", 0) for counts in found["streams"].values()) > 0
    assert {"command", "versions", "machine"} <= found.keys()
    assert "streams with inexact accounts" in capsys.readouterr().out


@pytest.mark.long
def test_a_node_that_ends_by_itself_ends_the_run_with_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    perform = Actions.perform

    def kill_and_perform(actions: Actions, change: Change, reverse: bool) -> None:
        actions._rig.node.send(signal.SIGKILL)
        perform(actions, change, reverse)

    monkeypatch.setattr(Actions, "perform", kill_and_perform)
    code, found, failed = soak(tmp_path, "--minutes", "0.25")
    assert code == 1
    assert "the node process ended with exit code -9" in failed["processes that ended by themselves"]
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
    assert HOUR.windows == (Window(600.0, 1200.0), Window(3000.0, 3600.0))
    assert SoakPlan(720.0).windows == (Window(240.0, 480.0), Window(480.0, 720.0))


@given(st.floats(15.0, 7200.0), KILL_EVERY_S)
def test_a_window_has_whole_rounds(seconds: float, kill_every_s: float) -> None:
    plan = SoakPlan(seconds, kill_every_s)
    rounds = (plan.windows[0].end_s - plan.windows[0].begin_s) / plan.round_s
    assert rounds == pytest.approx(round(rounds))
    assert rounds >= 1.0
    assert plan.round_s >= planned.MIN_ROUND_S


@given(KILL_EVERY_S, st.integers(0, 50))
def test_changes_are_those_of_the_seed_and_end_with_the_former_value(kill_every_s: float, seed: int) -> None:
    plan = SoakPlan(3600.0, kill_every_s, seed=seed)
    changes = plan.changes(CONFIG)
    assert changes == plan.changes(CONFIG)
    for change in changes:
        if change.action in (planned.SET, planned.SWAP):
            _, dnn, field = change.target.split(".")
            assert change.former == getattr(CONFIG.dnns[dnn], field)
        else:
            assert change.former is (change.action == planned.ENABLE)
    assert {change.action for change in changes} >= set(ACTIONS) - {planned.KILL_ENGINE, planned.SWAP}
    replacing = [change.action for change in changes if change.action in (planned.KILL_ENGINE, planned.SWAP)]
    assert sorted(replacing) == ([planned.KILL_ENGINE, planned.SWAP] if kill_every_s > 0.0 else [])


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
    assert verdicts.latency([steady], 0.0, WINDOWS).passed
    assert not verdicts.latency([slower], 0.0, WINDOWS).passed
    assert not verdicts.latency([Receipts()], 0.0, WINDOWS).passed
    assert verdicts.results({"a": steady}, 0.0, WINDOWS).passed
    found = verdicts.results({"a": steady, "b": silent}, 0.0, WINDOWS)
    assert not found.passed
    assert found.note == "b, 100 to 0"
    assert not verdicts.results({"a": steady, "b": Receipts()}, 0.0, WINDOWS).passed
    assert not verdicts.results({}, 0.0, WINDOWS).passed


def test_a_fault_is_answered_by_results_of_images_taken_after_it() -> None:
    assert not receipts((10.02, 50.0)).has_image_after(10.0)  # received after the fault, taken before it
    assert receipts((10.02, 50.0), (10.5, 50.0)).has_image_after(10.0)


def test_a_verdict_without_a_figure_fails_and_is_null_in_json() -> None:
    found = verdicts.ended(0.5, -9)
    assert math.isnan(found.value)
    assert not found.passed
    assert found.described()["value"] is None
    assert verdicts.ended(0.5, 0).passed
    assert not verdicts.ended(4.0, 0).passed
