"""Whether DNNs keep up with their cameras: the verdict from times, and the times of tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.planning.fit import LIMIT, Demand, Fit
from multi_dnn_ros.planning.frame_times import measure_times
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.configure import measure_fit
from multi_dnn_ros.settings.flat_parameters import to_config

CPU = torch.device("cpu")


def demand(dnn: str, hz: float, ms: float, jobs: int = 4, **options: object) -> Demand:
    return Demand(dnn, {"front": hz}, ms, (ms / jobs,) * jobs, **options)  # type: ignore[arg-type]


def test_a_fitting_set_reports_its_utilization() -> None:
    verdict = Fit((demand("lane", 10, 20), demand("object", 10, 50)), servers=2).verdict()
    assert verdict.text == "fits: 2 DNNs need 35% of 2 workers"
    assert verdict.utilization == pytest.approx(0.35)
    assert dict(verdict.needs) == {"lane": pytest.approx(0.2), "object": pytest.approx(0.5)}
    assert (verdict.fits, verdict.breaks, verdict.advice) == (True, (), ())


def test_a_dnn_runs_one_inference_at_a_time() -> None:
    verdict = Fit((demand("lane", 10, 20), demand("object", 30, 50)), servers=8).verdict()
    assert verdict.breaks == ("object",)
    assert verdict.most_hz["object"] == pytest.approx(19.0)
    assert "object: 50.0 ms per inference at 30 Hz, 150% of its time" in verdict.text
    assert verdict.advice == ("object: at most 19 Hz instead of 30, or multi-dnn decompose, a smaller input",)
    batched = Demand("object", {"front": 15.0, "rear": 15.0}, 60, (60,), batch=2)
    assert Fit((batched,)).verdict().needs["object"] == pytest.approx(0.9)


def test_overload_is_attributed_to_the_dnn_of_lowest_priority() -> None:
    crowd = [demand("lane", 10, 80), demand("object", 10, 70), demand("pedestrian", 10, 60)]
    verdict = Fit(tuple(crowd), servers=2).verdict()
    assert verdict.utilization == pytest.approx(1.05)
    assert verdict.breaks == ("lane",)  # the heaviest one
    crowd[0] = replace(crowd[0], priority=5)
    verdict = Fit(tuple(crowd), servers=2, gpu=True).verdict()
    assert verdict.breaks == ("object",)
    assert verdict.most_hz["object"] == pytest.approx((2 * LIMIT - 1.4) / 0.07)
    assert "of the GPU" in verdict.text
    assert "fp16" in verdict.advice[0]
    full = Fit((demand("lane", 10, 95, priority=1), demand("object", 10, 50))).verdict()
    assert full.advice[0].startswith("object: no rate fits beside the others")


def test_a_job_waits_for_one_job_of_each_other_dnn() -> None:
    slow = Demand("object", {"front": 1.0}, 100.0, (10.0, 70.0, 20.0))
    one = Fit((demand("lane", 1, 20, jobs=1, deadline_ms=80.0), slow))
    assert one.latency_ms(one.demands[0]) == pytest.approx(20 + 70)
    assert "lane: up to 90.0 ms from image to result, deadline 80 ms" in one.verdict().text
    assert "lane: a deadline of at least 90 ms instead of 80" in one.verdict().advice[0]
    four = replace(one, demands=(demand("lane", 1, 20, jobs=3), slow))
    assert four.latency_ms(four.demands[0]) == pytest.approx(20 + 100)  # three jobs in a row are a whole inference
    cameras = replace(one.demands[0], cameras={"front": 1.0, "rear": 1.0}, delay_ms=5.0)
    assert replace(one, demands=(cameras,)).latency_ms(cameras) == pytest.approx(5 + 2 * 20)


@given(
    st.lists(st.tuples(st.floats(0.5, 60.0), st.floats(0.5, 200.0), st.integers(-1, 1)), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_following_the_advice_on_rates_makes_it_fit(rows: list, servers: int) -> None:
    demands = tuple(demand(f"dnn{n}", hz, ms, priority=priority) for n, (hz, ms, priority) in enumerate(rows))
    fit = Fit(demands, servers)
    for _ in range(3 * len(demands)):  # repeatedly, because the other DNNs alone may exceed the capacity
        verdict = fit.verdict()
        assert verdict.fits == (not verdict.breaks)
        if verdict.fits:
            break
        after = {name: {"front": verdict.most_hz.get(name, 0.0) * 0.999} for name in verdict.breaks}
        changed = [replace(each, cameras=after.get(each.dnn, each.cameras)) for each in fit.demands]
        fit = replace(fit, demands=tuple(each for each in changed if each.hz))
    assert fit.verdict().fits


def task(name: str, ms: Sequence[float], cameras: tuple[str, ...] = ("front",), **options: object) -> DnnTask:
    """A DNN whose jobs wait instead of computing."""

    def stage_of(seconds: float):
        def stage(carried):
            time.sleep(seconds)
            return carried

        return stage

    stages = tuple(stage_of(job_ms / 1e3) for job_ms in ms)
    return DnnTask(name, cameras, lambda image: (torch.zeros(1, 3),), stages, lambda outputs, size: None, **options)


def test_an_inference_is_timed_by_jobs() -> None:
    tasks = [
        task("lane", (4.0, 20.0)),
        task("object", (1.0,), ("front", "rear"), batches={2: task("pair", (30.0,)).stages}),
    ]
    found = measure_times(tasks, CPU, 2)
    lane = found["lane"]
    assert lane.jobs_ms[0] >= 4.0
    assert lane.jobs_ms[1] >= 20.0 > lane.jobs_ms[0]
    assert lane.inference_ms >= 24.0
    assert (found["object"].batch, found["object"].jobs_ms[0] >= 30.0) == (2, True)


@pytest.mark.parametrize("servers", [1, 2])
def test_as_many_dnns_run_as_there_are_servers(servers: int) -> None:
    running: list[int] = []
    seen: list[int] = []

    def stage(carried):
        running.append(1)
        seen.append(len(running))
        time.sleep(0.005)
        running.pop()
        return carried

    tasks = [replace(task(name, ()), stages=(stage,)) for name in ("lane", "object", "pedestrian")]
    assert set(measure_times(tasks, CPU, servers)) == {"lane", "object", "pedestrian"}
    assert max(seen) == servers
    failing = replace(tasks[0], decode=lambda outputs, size: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure_times([failing, *tasks[1:]], CPU, servers)


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters with one small DNN."""
    folder = tmp_path_factory.mktemp("models")
    network = torch.nn.Conv2d(3, 1, 3, padding=1).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), folder / "lanes.pt2")
    lane = {"role": "lane", "model": str(folder / "lanes.pt2"), "decoder": "lane", "backend": "eager", "jobs": 1}
    path = folder / "robot.yaml"
    path.write_text(json.dumps({"/**": {"ros__parameters": {"dnns": ["lane"], "dnn": {"lane": lane}}}}))
    return path


def test_the_verb(params: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", "fit", "--params-file", str(params), "--device", "cpu"]
    out = tmp_path / "fit.json"
    assert main([*arguments, "--rate", "front=0.1", "--output", str(out)]) == 0
    assert "fits: 1 DNN needs" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["verdict"]["fits"]
    assert content["demands"][0]["inference_ms"] > 0.0
    assert main([*arguments, "--rate", "front=100000"]) == 1
    assert "because of lane" in capsys.readouterr().out
    assert main([*arguments, "--rate", "rear=10"]) == 2
    assert "--rate names camera 'rear'; the parameters have front" in capsys.readouterr().err
    assert main([*arguments, "--predictor", str(tmp_path / "none.json")]) == 1
    assert "none.json: cannot be read" in capsys.readouterr().err


def test_a_dnn_needs_no_more_than_its_limited_rate() -> None:
    flat = {"device": "cpu", "cameras": ["front", "rear"], "dnns": ["lane"], "dnn.lane.max_rate_hz": 5.0,
            "dnn.lane.enable": False, "dnn.lane.deadline_ms": 80.0}  # fmt: skip
    config = to_config(flat)
    found = measure_fit(config, build(config), {"front": 30.0, "rear": 2.0}).demands[0]
    assert found.cameras == {"front": 5.0, "rear": 2.0}  # it can be enabled at any time
    assert found.deadline_ms == 80.0
    assert sum(found.jobs_ms) < found.inference_ms
