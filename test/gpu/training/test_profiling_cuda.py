"""Profiling on a GPU: captured layers, streams as background load, a training step of one process (NCCL)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.contention import loads_of, machine_of, measure_contention
from multi_dnn_ros.profiling.layer_profile import measure
from multi_dnn_ros.profiling.limits import measure_limits
from multi_dnn_ros.profiling.network import load
from multi_dnn_ros.profiling.predictor import LoadKind


def gpu(backend: str, rounds: int = 20) -> Target:
    return Target(torch.device("cuda", 0), backend, {"eager": Eager, "cuda_graph": CudaGraph}[backend], rounds=rounds)


@pytest.mark.parametrize("backend", ["eager", "cuda_graph"])
def test_the_layers_add_up(backend: str) -> None:
    """Coarse: 10 % is for `multi-dnn profile layers` on an idle GPU."""
    target = gpu(backend)
    _, jobs, layers = measure(load("torchvision:resnet18").traced(1), target, jobs=4)
    layers_ms, jobs_ms = (
        sum(statistics.median(ms) for ms in of) for of in (layers, jobs)
    )  # fmt: skip
    assert len(jobs) == 4
    assert 0.6 < layers_ms / jobs_ms < 1.6


def test_limits_are_those_of_a_gpu() -> None:
    limits = measure_limits(gpu("eager"))
    assert limits.flops_per_s > 1e12
    assert limits.bytes_per_s > 3e10


@pytest.mark.parametrize(("backend", "kinds"), [("eager", ("compute", "memory")), ("cuda_graph", ("compute", "dnn"))])
def test_contention_by_streams(backend: str, kinds: tuple[LoadKind, ...], tmp_path: Path) -> None:
    target = gpu(backend, rounds=6)
    network = load("torchvision:resnet18")
    machine = machine_of(target, measure_limits(target))
    samples = measure_contention(
        [network], target, machine, loads_of(kinds, (0, 4)), tmp_path / "samples.csv", load_network=network
    )
    assert {sample.load_kind for sample in samples} == {"none", *kinds}
    alone = sum(sample.ms for sample in samples if not sample.load_level)
    assert sum(sample.ms for sample in samples if str(sample.load) == "4 x compute") > alone


def test_a_training_step_on_one_gpu(tmp_path: Path) -> None:
    options = ["--processes", "1", "--batch", "128", "--repeats", "5", "--output", str(tmp_path / "out")]
    assert main(["profile", "training", "torchvision:resnet50", *options]) == 0
    content = json.loads((tmp_path / "out" / "training.json").read_text())
    assert 0.85 < content["sum_ms"] / content["step_ms"] < 1.15
    convolutions = [layer for layer in content["layers"] if layer["kind"] == "Conv2d"]
    assert len(convolutions) == 53
    for layer in convolutions:
        assert min(layer["forward_ms"], layer["backward_ms"], layer["forward_bound_ms"]) > 0.0
