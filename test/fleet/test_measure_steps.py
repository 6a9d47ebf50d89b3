"""Step times of jobs, for the simulator."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from narrow_squeezenet import Narrow
from torch import nn
from torchvision.models import squeezenet

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet import measure_steps
from multi_dnn_ros.fleet.job_training import JobTraining, read_data
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.measure_steps import StepMeasurement
from multi_dnn_ros.fleet.step_times import Interconnect, read_step_times
from multi_dnn_ros.planning.batch_units import parse_unit

CPU = parse_unit("cpu:1")


@pytest.fixture
def job(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> FleetJob:
    """A small network: what is tested here is not how long its step takes."""
    monkeypatch.setattr(squeezenet, "SqueezeNet", Narrow)
    return job.model_copy(update={"model": "torchvision:squeezenet1_1", "steps": 1})


def write(path: Path, *jobs: FleetJob) -> str:
    content = {"jobs": [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]}
    path.write_text(yaml.safe_dump(content))
    return str(path)


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure one step per batch size, and no exchange between two processes."""
    found = Interconnect(latency_us=40, bandwidth_gb_s=1), 1.5
    monkeypatch.setattr(measure_steps, "measure_interconnect", lambda units: found)
    monkeypatch.setattr(measure_steps, "StepMeasurement", partial(StepMeasurement, samples=1))


@pytest.mark.long  # renders images; quicker: test_jobs_are_measured_and_simulated
def test_a_lane_network_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = FleetJob(
        name="lane", model="builtin:lane_small", data=f"road:{tmp_path / 'roads'}", scenes=20, global_batch=10, steps=10
    )  # fmt: skip
    without_exchange(monkeypatch)
    times = tmp_path / "times.json"
    jobs = write(tmp_path / "jobs.yaml", lane)
    assert main(["fleet", jobs, "--units", "cpu:1,cpu:1", "--measure", str(times)]) == 0
    (network,) = read_step_times(times).networks
    assert [step.batch for step in network.steps] == [1, 2, 5, 10]
    assert all(step.step_ms > 0.0 for step in network.steps)


def test_jobs_are_measured_and_simulated(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two networks with the same data, which is read once; a third job has the same network as the first."""
    without_exchange(monkeypatch)
    read: list[str] = []

    def counted(job: FleetJob, network: Any) -> Any:
        read.append(job.name)
        return read_data(job, network)

    monkeypatch.setattr(measure_steps, "read_data", counted)
    other = job.model_copy(update={"name": "b", "model": "torchvision:squeezenet1_0", "optimizer": "adamw"})
    third = job.model_copy(update={"name": "c", "seed": 3, "steps": 1000})
    jobs = write(tmp_path / "jobs.yaml", job, other, third)
    times = tmp_path / "times.json"
    assert main(["fleet", jobs, "--units", "cpu:1,cpu:1", "--measure", str(times)]) == 0
    assert read == ["a"]
    found = read_step_times(times)
    assert [network.model for network in found.networks] == [job.model, other.model]
    assert [[step.batch for step in network.steps] for network in found.networks] == [[2, 4, 10, 20]] * 2
    assert all(network.start_s > 1.5 for network in found.networks)
    assert (found.time_slice_ms, found.change_s) == (0.0, 1.0)
    assert "start s" in capsys.readouterr().out
    assert main(["fleet", jobs, "--simulate", str(times), "--gpus", "2"]) == 0


def test_jobs_with_the_same_network_need_equal_steps(
    job: FleetJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = job.model_copy(update={"name": "b", "global_batch": 30, "optimizer": "adamw"})
    jobs = write(tmp_path / "jobs.yaml", job, other)
    assert main(["fleet", jobs, "--units", "cpu:1,cpu:1", "--measure", str(tmp_path / "times.json")]) == 2
    expected = "jobs a and b train torchvision:squeezenet1_1 with different global_batch, optimizer"
    assert expected in capsys.readouterr().err


def test_the_exchange_between_two_units_is_measured() -> None:
    link, process_s = measure_steps.measure_interconnect((CPU, CPU))
    assert link.bandwidth_gb_s > 0.0
    assert process_s > 0.0


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", torch.float64), ("fp32", torch.float32)])
def test_a_step_is_that_of_the_job(
    precision: str, dtype: torch.dtype, job: FleetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Precision, augmented images of the data set, and the optimizer's state."""
    types: list[torch.dtype] = []
    spreads: list[float] = []
    trainings: list[JobTraining] = []

    class Recorder(Narrow):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            types.append(images.dtype)
            spreads.append(float(images.std()))
            result: torch.Tensor = super().forward(images)
            return result

    class Training(JobTraining):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            trainings.append(self)

    monkeypatch.setattr(squeezenet, "SqueezeNet", Recorder)
    monkeypatch.setattr(measure_steps, "JobTraining", Training)
    job = job.model_copy(update={"precision": precision, "optimizer": "adamw"})
    measured = StepMeasurement(CPU, samples=1).measure(job)
    steps = 13  # the first one; then, for each of four sizes, two to warm up and one
    assert set(types[-steps:]) == {dtype}
    assert len(set(spreads[-steps:])) == steps  # different images in each step
    (training,) = trainings
    network: nn.Module = training.network
    parameters = [each for each in network.parameters() if each.requires_grad]
    assert measured.gradient_bytes == sum(each.numel() * dtype.itemsize for each in parameters)
    assert training.done == steps
    assert all(value.isfinite().all() for value in parameters)


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
    measured = StepMeasurement(CPU, samples=1).measure(job)
    assert [step.step_ms for step in measured.steps] == [3000.0] * 4
