"""Comparison of a measured fleet with the simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.prediction_check import FITTED, NOT_FITTED, main, settled_steps

RESULTS = Path(__file__).resolve().parents[2] / "results"


def entry(seconds: float, reason: str, images_per_s: dict[str, float], **shares: list[int]) -> dict[str, Any]:
    jobs = list(shares) if reason in ("start", "algorithm", "reverted") else []
    return {"seconds": seconds, "reason": reason, "jobs": jobs, "shares": shares, "images_per_s": images_per_s}


def test_only_settled_periods_count() -> None:
    """Not those after the start or a change, trials, and the period in which a job ends."""
    jobs = [{"name": name, "model": "m", "data": "d", "global_batch": 100, "steps": 9} for name in "ab"]
    file = JobsFile.model_validate({"period_s": 10.0, "turns": False, "jobs": jobs})
    whole: dict[str, list[int]] = {"a": [10, 0], "b": [0, 10]}
    decisions = [
        entry(0, "start", {}, **whole),
        entry(12, "unchanged", {"a": 1.0, "b": 1.0}, **whole),  # since the start
        entry(22, "algorithm", {"a": 1000.0, "b": 500.0}, a=[5, 5], b=[0, 10]),  # settled
        entry(24, "reverted", {"a": 2.0, "b": 2.0}, **whole),  # a trial
        entry(34, "unchanged", {"a": 800.0, "b": 500.0}, **whole),  # settled, with the same shares
        entry(44, "unchanged", {"a": 3.0, "b": 3.0}, **whole),  # b is scored
        entry(47, "unchanged", {"a": 4.0, "b": 4.0}, a=[10, 0]),
        entry(57, "unchanged", {"a": 2000.0}, a=[10, 0]),  # settled
    ]
    assert settled_steps(file, decisions) == [
        {"shares": {"a": (10, 0), "b": (0, 10)}, "measured_ms": {"a": pytest.approx(112.5), "b": pytest.approx(200)}},
        {"shares": {"a": (10, 0)}, "measured_ms": {"a": pytest.approx(50)}},
    ]


def test_of_jobs_that_train_in_turns_only_those_that_trained_count() -> None:
    jobs = [{"name": name, "model": "m", "data": "d", "global_batch": 100, "steps": 9} for name in "ab"]
    file = JobsFile.model_validate({"period_s": 10.0, "jobs": jobs})
    both = {"a": [10, 0], "b": [10, 0]}
    decisions = [
        {**entry(seconds, reason, images_per_s, **both), "training": training}
        for seconds, reason, images_per_s, training in (
            (0, "start", {}, []),
            (3, "turns", {}, ["a"]),
            (14, "turns", {"a": 1000.0}, ["b"]),
            (25, "unchanged", {"b": 500.0}, ["b"]),
            (36, "unchanged", {}, ["b"]),  # no step of b was measured
        )
    ]
    assert settled_steps(file, decisions) == [
        {"shares": {"a": (10, 0)}, "measured_ms": {"a": pytest.approx(100)}},
        {"shares": {"b": (10, 0)}, "measured_ms": {"b": pytest.approx(200)}},
    ]


def test_the_measured_fleet_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    files = [str(RESULTS / name) for name in ("fleet_4gpus.json", "fleet_4gpus_simulated.json")]
    options = ["--start-s", "10", "8", "--host-ms", "0.9", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["prediction_check", *files, *options])
    main()
    assert FITTED in capsys.readouterr().out  # the defaults of the model were fitted to this run
    content = json.loads(output.read_text())
    kept = json.loads((RESULTS / "fleet_4gpus_prediction.json").read_text())
    before = "predicted before the run"
    assert content[before]["policies"] == kept[before]["policies"]
    assert content[before]["step_time_errors"]["even"]["median_absolute_error"] > 0.3
    again = content["simulated after the run"]
    assert again["note"] == kept["simulated after the run"]["note"] == FITTED
    for name in ("step times as measured", "0.9 ms more of the host per tenth"):
        same = kept["simulated after the run"][name]["step_time_errors"]
        for policy, errors in again[name]["step_time_errors"].items():
            assert errors == pytest.approx(same[policy], rel=1e-6)
    assert set(again) == {"note", "step times as measured", "0.9 ms more of the host per tenth",
                          "step times as measured, start after 8 s"}  # fmt: skip
    errors = again["0.9 ms more of the host per tenth"]["step_time_errors"]
    assert all(errors[policy]["median_absolute_error"] < 0.15 for policy in ("fair", "even", "one unit"))


@pytest.mark.parametrize(("option", "expected"), [([], NOT_FITTED), (["--fitted-to-this-run"], FITTED)])
def test_the_file_says_whether_anything_was_fitted_to_the_run(
    option: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run than the one to which the defaults of the model were fitted, with measured starts and time slices."""
    run = json.loads((RESULTS / "fleet_4gpus.json").read_text())
    run["policies"]["fair"]["total_s"] += 1.0
    simulated = json.loads((RESULTS / "fleet_4gpus_simulated.json").read_text())
    simulated["step_times"]["time_slice_ms"] = 1.75
    for network in simulated["step_times"]["networks"]:
        network["start_s"] = 9.0
    for name, content in (("run", run), ("simulated", simulated)):
        (tmp_path / name).write_text(json.dumps(content))
    output = tmp_path / "out.json"
    files = [str(tmp_path / name) for name in ("run", "simulated")]
    monkeypatch.setattr(sys, "argv", ["prediction_check", *files, *option, "--output", str(output)])
    main()
    content = json.loads(output.read_text())
    again = content["simulated after the run"]
    assert again["note"] == expected
    assert ("results/fleet_4gpus.json" in again["note"]) == (not option)
    same = again["step times as measured"]
    assert same["start_s"] is None
    assert same["step_time_errors"] == content["predicted before the run"]["step_time_errors"]
