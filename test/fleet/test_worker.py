"""The training of a job in one process, without Ray."""

from __future__ import annotations

import json
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.worker import JobWorker
from multi_dnn_ros.models.artifact import Description, save_artifact
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training.loop import TrainingError


def started(job: FleetJob, folder: Path) -> JobWorker:
    """A process that is ready to train, from the checkpoint in the folder if there is one."""
    worker = JobWorker(job, 1, folder)
    worker.prepare(folder / "checkpoint.pt")
    worker.join(0, 1, "")
    return worker


def test_a_training_that_continues_from_a_checkpoint_equals_one_without_a_break(job: FleetJob, tmp_path: Path) -> None:
    """Over the end of an epoch of six steps."""
    whole = started(job, tmp_path).train(8).losses
    first = started(job, tmp_path)
    assert first.train(3).losses == whole[:3]
    first.save(tmp_path / "checkpoint.pt")
    second = JobWorker(job, 1, tmp_path)
    progress = second.prepare(tmp_path / "checkpoint.pt")
    assert (progress.done, progress.total, progress.losses) == (3, job.steps, whole[:3])
    second.join(0, 1, "")
    assert second.train(5).losses == pytest.approx(whole[3:], rel=1e-4)


def test_a_checkpoint_of_another_training_is_refused(job: FleetJob, tmp_path: Path) -> None:
    started(job, tmp_path).save(tmp_path / "checkpoint.pt")
    with pytest.raises(TrainingError, match=r"checkpoint of another run: job\.lr is 0\.0002 there, 0\.1 now"):
        started(job.model_copy(update={"lr": 0.1}), tmp_path)
    started(job.model_copy(update={"priority": 3.0, "checkpoint_every_s": 1.0}), tmp_path)


def test_a_batch_that_is_larger_than_the_data_is_refused(job: FleetJob, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"global_batch = 1000: .* has 90 rows"):
        started(job.model_copy(update={"global_batch": 1000}), tmp_path)


def test_a_loss_that_is_not_finite_ends_the_training(job: FleetJob, tmp_path: Path) -> None:
    worker = started(job.model_copy(update={"lr": 100.0, "optimizer": "sgd", "warm_up": 0.0}), tmp_path)
    weight = next(iter(worker._network.parameters()))
    weight.data.fill_(torch.nan)
    with pytest.raises(TrainingError, match="step 1: the loss is nan; lower lr = 100"):
        worker.train(1)


def test_an_exported_program_is_trained_and_written(job: FleetJob, tmp_path: Path) -> None:
    """It supports neither train() nor eval()."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )  # fmt: skip
    path = tmp_path / "in.pt2"
    preprocess = {"bgr": True, "std": (0.5, 0.6, 0.7)}
    save_artifact(path, network.eval(), Description(model="in.onnx", input_size=(16, 16), preprocess=preprocess))
    changes = {"model": str(path), "weights": "default", "num_classes": 0, "size": None, "decoder": "classification"}
    worker = started(job.model_copy(update={**changes, "steps": 2, "lr": 0.1}), tmp_path)
    assert worker.train(2).done == 2
    assert set(worker.finish()) == {"top1", "top5"}
    before, after = (load_network(str(each)) for each in (path, tmp_path / "a.pt2"))
    assert after.labels == ("green", "red")
    assert after.preprocess == before.preprocess == {"bgr": True, "std": (0.5, 0.6, 0.7)}
    assert any(
        not torch.equal(old, new)
        for old, new in zip(before.module.parameters(), after.module.parameters(), strict=True)
    )


def train_in_a_group(rank: int, job: FleetJob, folder: Path, address: str) -> None:
    worker = JobWorker(job, 1, folder)
    worker.prepare(folder / "checkpoint.pt")
    worker.join(rank, 2, address)
    (folder / f"{rank}.json").write_text(json.dumps(worker.train(8).losses))


@pytest.mark.usefixtures("forked_spawns")
def test_two_processes_train_as_one_does(job: FleetJob, tmp_path: Path) -> None:
    address = started(job, tmp_path).address()
    processes = [
        get_context("spawn").Process(target=train_in_a_group, args=(rank, job, tmp_path, address)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120.0)
        assert process.exitcode == 0
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    # On CPUs each process normalizes its own part of a batch, so the losses differ a little from those of one process.
    assert first == pytest.approx(started(job, tmp_path).train(8).losses, abs=0.3)
