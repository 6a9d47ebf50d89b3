"""The training of one job in one process."""

from __future__ import annotations

import io

import pytest
import torch

from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob


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
