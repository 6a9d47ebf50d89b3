"""Step times of networks, for the simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet import measure_steps
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.measure_steps import measure_network
from multi_dnn_ros.fleet.networks import load_trainable
from multi_dnn_ros.fleet.step_times import Interconnect, read_step_times
from multi_dnn_ros.planning.batch_units import parse_unit

CPU = parse_unit("cpu:1")


def test_a_lane_network_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"name": "lane", "model": "builtin:lane_small", "data": "road", "global_batch": 10, "steps": 10}
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": [job]}))
    monkeypatch.setattr(
        "multi_dnn_ros.fleet.measure_steps.measure_interconnect",
        lambda units: Interconnect(latency_us=40, bandwidth_gb_s=1),
    )
    monkeypatch.setattr("multi_dnn_ros.fleet.measure_steps.measure_network", partial(measure_network, samples=1))
    times = tmp_path / "times.json"
    assert main(["fleet", str(tmp_path / "jobs.yaml"), "--units", "cpu:1,cpu:1", "--measure", str(times)]) == 0
    (network,) = read_step_times(times).networks
    assert [step.batch for step in network.steps] == [1, 2, 5, 10]
    assert all(step.step_ms > 0.0 for step in network.steps)


class Recorder(nn.Module):
    """Records the types of its inputs; its outputs are nested, and one has integers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1)
        self.types: set[torch.dtype] = set()

    def forward(self, images: torch.Tensor) -> dict[str, Any]:
        self.types.add(images.dtype)
        found = self.layer(images)
        return {"scores": found, "more": [found.mean(dim=1)], "count": torch.ones(2, dtype=torch.long)}


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", torch.float64), ("fp32", torch.float32)])
def test_a_step_has_the_precision_of_the_job(precision: str, dtype: torch.dtype, job: FleetJob) -> None:
    network, trainable = Recorder(), load_trainable(job.model_copy(update={"model": "torchvision:shufflenet_v2_x0_5"}))
    measured = measure_network(replace(trainable, network=network, task="boxes"), CPU, 10, precision, samples=1)
    assert network.types == {dtype}
    assert measured.gradient_bytes == 8 * dtype.itemsize
    assert all(value.isfinite().all() for value in network.parameters())


def test_a_wait_for_a_core_outside_a_step_is_not_subtracted_from_it(
    job: FleetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process waits for 3 s each time that the waiting time is read; a step takes no time."""
    now_s = [0.0]

    def waited_s() -> float:
        now_s[0] += 3.0
        return now_s[0]

    monkeypatch.setattr(measure_steps, "_waited_s", waited_s)
    cpu_s = count()
    clock = SimpleNamespace(monotonic=lambda: now_s[0], process_time=lambda: next(cpu_s))
    monkeypatch.setattr(measure_steps, "time", clock)
    trainable = load_trainable(job.model_copy(update={"model": "torchvision:shufflenet_v2_x0_5"}))
    measured = measure_network(replace(trainable, network=Recorder(), task="boxes"), CPU, 10, "fp32", samples=1)
    assert [step.step_ms for step in measured.steps] == [3000.0] * 4


def test_a_classifier_is_measured(job: FleetJob) -> None:
    trainable = load_trainable(job.model_copy(update={"model": "torchvision:shufflenet_v2_x0_5"}))
    assert len(measure_network(trainable, CPU, 20, "fp32", samples=1).steps) == 4
