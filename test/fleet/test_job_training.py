"""The training of one job in one process."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.fleet.job_training import JobTraining, read_data
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.measure_steps import StepMeasurement
from multi_dnn_ros.fleet.networks import load_trainable
from multi_dnn_ros.models.artifact import Description, save_artifact
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.planning.batch_units import parse_unit
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.parts import VALIDATION_ROWS


@pytest.mark.parametrize("more", [{"steps": None, "epochs": 2}, {}], ids=["epochs", "steps"])
def test_the_learning_rate_follows_the_whole_schedule(more: dict[str, int | None], job: FleetJob) -> None:
    """Also with one step more than an epoch, where the schedule has two epochs."""
    changes = {"model": "torchvision:shufflenet_v2_x0_5", "lr": 0.01, "warm_up": 0.0}
    job = job.model_copy(update={**changes, "global_batch": 10, "steps": 1})
    device = torch.device("cpu")
    data = JobTraining(job, device).data
    length = data.counts["train"] // job.global_batch
    assert length >= 8
    training = JobTraining(job.model_copy(update={"steps": length + 1, **more}), device, data)
    training.take((10,), 0)
    training.done = training.total - 1
    training.step()
    state = torch.load(io.BytesIO(training.state_bytes()), weights_only=True)
    assert state["optimizer"]["param_groups"][0]["lr"] < 0.05 * job.lr


def test_no_warning_about_the_selection_of_an_epoch(job: FleetJob, caplog: pytest.LogCaptureFixture) -> None:
    """A fleet selects none, so the images that are held out for it may be few, as here."""
    data = read_data(job, load_trainable(job))
    assert data.counts["choice"] < VALIDATION_ROWS
    assert not caplog.records


def test_a_detector_needs_its_metric_before_it_is_trained(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"model": "builtin:object", "data": f"road:{tmp_path}", "num_classes": 0, "size": None}
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(MissingExtra, match="average precision needs pycocotools"):
        JobTraining(job.model_copy(update={**changes, "scenes": 10}), torch.device("cpu"))
    assert not list(tmp_path.iterdir())  # reported before the data is rendered


def test_a_network_with_statistics_that_are_not_finite_is_not_scored(job: FleetJob, tmp_path: Path) -> None:
    """Their outputs could not be scored, and the message would not name them."""
    job = job.model_copy(update={"model": "torchvision:shufflenet_v2_x0_5"})
    training = JobTraining(job, torch.device("cpu"))
    training.network.get_buffer("conv1.1.running_var")[0] = torch.inf
    with pytest.raises(TrainingError, match=r"conv1\.1\.running_var is not finite, and the network is not written"):
        training.finish(tmp_path / "out.safetensors")


@pytest.fixture
def exported(job: FleetJob, tmp_path: Path) -> FleetJob:
    """A job whose network is an exported program, which supports neither train() nor eval()."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )  # fmt: skip
    path = tmp_path / "in.pt2"
    preprocess = {"bgr": True, "std": (0.5, 0.6, 0.7)}
    save_artifact(path, network.eval(), Description(model="in.onnx", input_size=(16, 16), preprocess=preprocess))
    changes = {"model": str(path), "weights": "default", "num_classes": 0, "size": None, "decoder": "classification"}
    return job.model_copy(update={**changes, "steps": 2, "lr": 0.1})


def test_an_exported_program_is_trained_and_written(exported: FleetJob, tmp_path: Path) -> None:
    training = JobTraining(exported, torch.device("cpu"))
    training.take((10,), 0)
    while training.done < training.total:
        training.step()
    assert training.suffix() == ".pt2"
    assert set(training.finish(tmp_path / "out.pt2")) == {"top1", "top5"}
    before, after = (load_network(str(path)) for path in (exported.model, tmp_path / "out.pt2"))
    assert after.labels == ("green", "red")
    assert after.preprocess == before.preprocess == {"bgr": True, "std": (0.5, 0.6, 0.7)}
    assert any(
        not torch.equal(old, new)
        for old, new in zip(before.module.parameters(), after.module.parameters(), strict=True)
    )


def test_the_steps_of_an_exported_program_are_measured(exported: FleetJob) -> None:
    measured = StepMeasurement(parse_unit("cpu:1"), samples=1).measure(exported)
    assert [step.batch for step in measured.steps] == [2, 4, 10, 20]
