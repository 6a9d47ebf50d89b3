"""`multi-dnn benchmark board`: trials, mixes, the search and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.board.measure import Trial, run_trial
from multi_dnn_ros.benchmark.board.report import ros2_benchmark_metrics
from multi_dnn_ros.benchmark.board.search import PRECISION, RateSearch
from multi_dnn_ros.benchmark.observation import NodeSample, Receipts
from multi_dnn_ros.cli.main import main


def run(*arguments: object) -> int:
    try:
        return main(["benchmark", "board", *map(str, arguments)])
    except SystemExit as ended:
        return int(ended.code or 0)


class _TwoCameras:
    """A rig whose second camera begins five seconds after the first one; time passes only while it is observed.

    DNN lane processes every third image, as max_rate_hz has it; DNN off is switched off. loses: share of the images
    that do not reach the node.
    """

    def __init__(self, loses: float) -> None:
        self.loses = loses
        self.plans = dict.fromkeys(("front", "rear"))
        self.streams = [(dnn, name) for dnn in ("lane", "off") for name in self.plans]
        self.receipts = {stream: Receipts() for stream in self.streams}
        self.samples = [NodeSample(0.0, 1 << 28, 1, 1)]
        self.cameras: dict[str, float] = {}  # when each begins
        self.rate_hz = self.reported_s = 0.0
        self.reports = 0

    def start_camera(self, name: str, rate_hz: float) -> None:
        self.cameras[name], self.rate_hz = self.reported_s + (5.0 if name == "rear" else 0.5), rate_hz

    def stop_cameras(self) -> None:
        self.cameras.clear()

    def settle(self, limit_s: float) -> bool:
        return not self.cameras

    def spin(self, seconds: float) -> None:
        self.reported_s += seconds
        self.reports += 1

    def until(self, condition: Any, limit_s: float) -> bool:
        end_s = self.reported_s + limit_s
        while not condition() and self.reported_s < end_s:
            self.spin(0.25)
        return bool(condition())

    def value(self, status: str, key: str) -> str | None:
        return str(self._sent(status.removeprefix("camera "))) if key == "received" else None

    def accounts(self) -> dict[tuple[str, str], dict[str, Any]]:
        found = {}
        for dnn, camera in self.streams:
            offered = self._sent(camera)
            published = (offered + 2) // 3 if dnn == "lane" else 0
            reason = "rate_limited" if dnn == "lane" else "switched_off"
            found[dnn, camera] = {"offered": offered, "published": published, "pending": 0,
                                  "dropped": {reason: offered - published}}  # fmt: skip
        return found

    def _sent(self, name: str) -> int:
        seconds = max(0.0, self.reported_s - self.cameras.get(name, self.reported_s))
        return int((1.0 - self.loses) * int(self.rate_hz * seconds))


@pytest.mark.parametrize("loses", [0.0, 0.2])
def test_a_trial_begins_when_all_cameras_send_and_misses_no_image_that_parameters_refuse(loses: float) -> None:
    rig: Any = _TwoCameras(loses)
    found = run_trial(rig, 30.0, 10.0)
    assert set(found["dropped"]) == ({"not_received"} if loses else set())
    assert found["drop_share"] == pytest.approx(loses, abs=0.03)
    assert found["passed"] is not bool(loses)


# -- the run, on a fake board


class _FakeRig:
    """Serves every stream up to `edge` Hz."""

    edge = 20.0

    def __init__(self, folder: Path, config: Any, cameras: Any, seed: int) -> None:
        self.streams = [(name, "camera0") for name in config.dnns]
        self.problems: list[str] = []

    def __enter__(self) -> _FakeRig:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def value(self, status: str, key: str) -> str:
        return "cpu"


def fake_trial(rig: _FakeRig, rate_hz: float, seconds: float) -> Trial:
    passed = rate_hz <= rig.edge
    served_hz = min(rate_hz, rig.edge)
    return {
        "rate_hz": rate_hz, "seconds": seconds, "frames": rate_hz * seconds, "results": round(served_hz * seconds),
        "results_hz": served_hz * len(rig.streams), "dropped": {} if passed else {"overwritten": 9},
        "drop_share": 0.0 if passed else 0.5, "passed": passed,
        "latency_ms": {"samples": 9, "min": 1.0, "p50": 2.0, "p95": 3.0, "p99": 4.0, "max": 5.0}, "cpu_cores": 0.5,
        "cpu_ms_per_result": 10.0, "memory_bytes": 1 << 28, "gpu_memory_bytes": None,
        "power_w": None, "temperature_c": None, "throttled": {},
        "ros2_benchmark": ros2_benchmark_metrics(np.array([0.0, 0.1, 0.2]), np.array([5.0, 6.0, 7.0]), rate_hz, 3.0),
    }  # fmt: skip


@pytest.fixture
def fake_board(monkeypatch: pytest.MonkeyPatch) -> type[_FakeRig]:
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.Rig", _FakeRig)
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.run_trial", fake_trial)
    monkeypatch.setattr(_FakeRig, "edge", 20.0)
    return _FakeRig


def test_a_run_writes_figures_a_plot_and_a_file_like_ros2_benchmark(
    fake_board: type[_FakeRig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "board.json"
    assert run("--minutes", "15", "--device", "cpu", "--output", path) == 0
    content = json.loads(path.read_text())
    assert {"command", "versions", "machine", "settings", "board"} <= content.keys()
    found = content["mixes"]["builtin"]
    assert found["highest_hz"] <= 20.0 < found["failing_hz"] <= 1.06 * found["highest_hz"]
    assert found["at_highest"]["rate_hz"] == found["highest_hz"]
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    shared = json.loads((tmp_path / "board_builtin_ros2_benchmark.json").read_text())
    assert shared["BasicPerformanceMetrics.MEAN_FRAME_RATE"] == pytest.approx(15.0)
    assert shared["BasicPerformanceMetrics.MEAN_LATENCY"] == pytest.approx(6.0)
    assert shared["BasicPerformanceMetrics.MAX_JITTER"] == pytest.approx(0.0, abs=1e-6)
    assert "highest rate per camera, Hz" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_figures(
    fake_board: type[_FakeRig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = 0

    def interrupted(*arguments: Any) -> Trial:
        nonlocal started
        started += 1
        if started == 3:
            raise KeyboardInterrupt
        return fake_trial(*arguments)

    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.run_trial", interrupted)
    path = tmp_path / "board.json"
    assert run("--minutes", "15", "--device", "cpu", "--output", path) == 130
    assert len(json.loads(path.read_text())["mixes"]["builtin"]["trials"]) == 2


def test_a_mix_that_fails_is_named_and_the_exit_code_is_1(
    fake_board: type[_FakeRig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: _FakeRig) -> _FakeRig:
        raise RuntimeError("the node was not configured: no memory")

    monkeypatch.setattr(_FakeRig, "__enter__", fail)
    path = tmp_path / "board.json"
    parameters = tmp_path / "robot.yaml"
    parameters.write_text("/**: {ros__parameters: {dnns: [lane]}}\n")
    assert run("--minutes", "1", "--params-file", parameters, "--device", "cpu", "--output", path) == 1
    assert "no memory" in json.loads(path.read_text())["mixes"]["robot"]["error"]
    assert "1 of 1 mixes failed: robot" in capsys.readouterr().err


@pytest.mark.long  # the short tests above use a fake board
def test_a_short_run_with_a_real_node(tmp_path: Path) -> None:
    path, parameters = tmp_path / "board.json", tmp_path / "one.yaml"
    parameters.write_text("/**: {ros__parameters: {dnns: [object], dnn: {object: {backend: eager, jobs: 1}}}}\n")
    assert run("--minutes", "1", "--params-file", parameters, "--size", "160x120", "--output", path) == 0
    found = json.loads(path.read_text())["mixes"]["one"]
    assert found["trials"]
    for each in found["trials"]:
        missing = sum(each["dropped"].values())
        # Images that the camera sends up to half a second late may belong to the time before or after the trial.
        assert each["results"] + missing == pytest.approx(each["frames"], abs=8 + each["rate_hz"] / 2)
        assert each["memory_bytes"] > 1 << 27
        assert each["cpu_cores"] > 0


# -- the search


def search(passes: Callable[[float], bool], lowest_hz: float = 0.5, highest_hz: float = 200.0) -> RateSearch:
    found, tried = RateSearch(lowest_hz, highest_hz), set[float]()
    while (rate := found.next_hz()) is not None:
        assert lowest_hz <= rate <= highest_hz
        assert rate not in tried
        tried.add(rate)
        found.add(rate, passes(rate))
    assert len(tried) <= 16
    return found


@given(st.floats(0.6, 190.0))
def test_the_highest_rate_is_found(edge: float) -> None:
    found = search(lambda rate: rate <= edge)
    assert found.best_hz is not None
    assert found.failing_hz is not None
    assert found.best_hz <= edge < found.failing_hz <= found.best_hz * (1.0 + PRECISION) * 1.001  # rates are rounded


def test_the_limits_of_the_rates_end_the_search() -> None:
    assert search(lambda rate: True).best_hz == 200.0
    nothing = search(lambda rate: False)
    assert (nothing.best_hz, nothing.failing_hz) == (None, 0.5)
    assert search(lambda rate: True, 5.0, 5.0).best_hz == 5.0
