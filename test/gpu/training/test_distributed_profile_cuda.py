"""Distributed training profile on a GPU, as a group of one process (NCCL). CPU twin: test/profiling/."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from training_processes import Branches

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.profiling.training.interconnect import measure_all_reduce, measure_overlap
from multi_dnn_ros.profiling.training.measure import measure_steps
from multi_dnn_ros.profiling.training.step import Replica, make_batch

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_both_reductions_on_streams() -> None:
    network = Branches().to(DEVICE, memory_format=torch.channels_last)
    replicas = {"layers": Replica(copy.deepcopy(network)), "ddp": Replica(copy.deepcopy(network), bucket_mib=0.001)}
    batch = make_batch((1, 3, 8, 8), 16, 0, DEVICE)
    expected = replicas["layers"].gradients(batch, "alone")
    for method in ("layers", "ddp"):
        for ours, theirs in zip(replicas[method].gradients(batch, method), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    times = measure_steps(replicas, batch, ("alone", "layers", "ddp"), 3, lambda: None)
    assert not times["alone"].traced.messages
    for method in ("layers", "ddp"):
        messages = times[method].traced.messages
        assert len(messages) > 1
        assert all(0.0 <= message.start_s < message.end_s for message in messages)
    assert len(times["layers"].traced.messages) > len(times["ddp"].traced.messages)
    samples = measure_all_reduce([4096, 16384], DEVICE, lambda: None)
    overlap = measure_overlap(lambda: replicas["layers"].launch(batch), DEVICE, samples)
    assert overlap.compute >= 1.0
    assert overlap.communication >= 1.0


def test_one_gpu_with_a_given_link(tmp_path: Path) -> None:
    options = ["--gpus", "1", "--batch", "128", "--repeats", "5", "--link", "19:290", "--output", str(tmp_path / "out")]
    assert main(["profile", "training", "torchvision:resnet50", *options]) == 0
    content = json.loads((tmp_path / "out" / "training.json").read_text())
    assert list(content["methods"]) == ["alone"]
    assert 0.85 < content["methods"]["alone"]["sum_over_step"] < 1.15
    assert content["scaling_predicted"][-1]["processes"] == 64
    bounds = [layer["forward"]["bound_ms"] for layer in content["layers"] if layer["kind"] == "Conv2d"]
    assert len(bounds) == 53
    assert min(bounds) > 0.0
