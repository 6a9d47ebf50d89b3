"""Three cameras near capacity: every frame is accounted for, however busy the machine is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.paper.deadlines import (
    LOADS,
    POLICIES,
    URGENCIES,
    Bench,
    deadlines_table,
    dnns_for,
    summarize_cases,
)
from multi_dnn_ros.benchmark.paper.sets import SETS, DnnSet, Network
from multi_dnn_ros.cli.main import main


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_frame_is_a_result_or_a_counted_drop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One network, for all DNNs: preparing others takes longer than all runs.
    monkeypatch.setitem(SETS, "small", DnnSet("small", (Network("squeezenet1_1", "Squeeze", side=64),)))
    output = tmp_path / "deadlines.json"
    arguments = ["--device", "cpu", "--repeats", "1", "--seconds", "0.2", "--jobs", "2", "--max-dnns", "3"]
    assert main(["benchmark", "deadlines", *arguments, "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["passed"]
    assert found["command"].split()[0] == "multi-dnn"
    assert {(case["load"], case["policy"]) for case in found["cases"]} == {(a, b) for a in LOADS for b in POLICIES}
    for case in found["cases"]:
        accounts = case["accounts"]
        assert list(accounts) == [urgency.name for urgency in URGENCIES]
        assert sum(each["offered"] for each in accounts.values()) == case["frames"] * case["dnns"]
        for each in accounts.values():
            assert each["offered"] == each["published"] + sum(each["dropped"].values())
            assert set(each["dropped"]) <= {"overwritten"}
            assert each["missed"] <= each["published"]
    assert len(found["summary"]) == len(LOADS) * len(POLICIES) * len(URGENCIES)
    assert all(0.0 <= row["missed"] + row["dropped"] <= 1.0 for row in found["summary"])
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "accounts: exact" in capsys.readouterr().out


def test_an_interrupted_run_keeps_the_cases_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "small", DnnSet("small", (Network("squeezenet1_1", "Squeeze", side=64),)))
    runs = []

    def run(bench: Bench, count: int, rate_hz: float, policy: str) -> dict[str, Any]:
        if len(runs) == 2:
            raise KeyboardInterrupt
        runs.append((count, policy))
        nothing = {"offered": 10, "published": 0, "dropped": {"overwritten": 10}, "missed": 0, "latency_ms": {}}
        return {"dnns": count, "rate_hz": rate_hz, "exact": True, "accounts": {u.name: nothing for u in URGENCIES}}

    monkeypatch.setattr(Bench, "run", run)
    output = tmp_path / "deadlines.json"
    arguments = ["--device", "cpu", "--repeats", "1", "--seconds", "0.2", "--jobs", "2", "--max-dnns", "3"]
    assert main(["benchmark", "deadlines", *arguments, "--output", str(output)]) == 130
    found = json.loads(output.read_text())
    assert [(case["dnns"], case["policy"]) for case in found["cases"]] == runs
    assert len(found["summary"]) == len({(case["load"], case["policy"]) for case in found["cases"]}) * len(URGENCIES)


@given(st.sampled_from(LOADS), st.floats(0.1, 1e5), st.floats(0.1, 1e3), st.integers(3, 100))
def test_number_of_dnns_for_a_load(load: float, served: float, rate: float, maximum: int) -> None:
    count = dnns_for(load, served, rate, maximum)
    assert 3 <= count <= maximum
    if 3 < count < maximum:
        assert abs(count * 3 * rate - load * served) <= 1.5 * rate + 1e-6


def test_without_served_frames_there_is_no_latency() -> None:
    nothing = {"offered": 10, "published": 0, "dropped": {"overwritten": 10}, "missed": 0, "latency_ms": {}}
    some = {"offered": 10, "published": 9, "dropped": {"overwritten": 1}, "missed": 0, "latency_ms": {"p99": 7.0}}
    cases = [
        {"load": load, "policy": policy, "dnns": 3, "rate_hz": 30.0,
         "accounts": {"high": some, "middle": low, "low": nothing}}
        for load in LOADS for policy in POLICIES for low in (some, nothing)
    ]  # fmt: skip
    summary = summarize_cases(cases)
    assert [row["p99_ms"] for row in summary[:3]] == [7.0, 7.0, None]
    table = deadlines_table({"summary": summary, "passed": True})
    assert "0.0%, 100.0%, - " in table


def test_wrong_usage_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--set", "fig5"], "--set is fig5, which is several sets; choose one: vgg16_x8"),
        (["--condition", "ours_fp16"], "'ours_fp16', which needs a GPU"),
        (["--sms", "8"], "--sms is 8; only an NVIDIA GPU"),
    ):
        assert main(["benchmark", "deadlines", "--device", "cpu", *arguments]) == 2
        assert words in capsys.readouterr().err
