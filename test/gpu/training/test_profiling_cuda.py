"""Profiling on a GPU: marks in captured graphs, slices of it, streams as background load."""

from __future__ import annotations

import statistics

import pytest
import torch

from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.planning.device import measure_limits
from multi_dnn_ros.planning.measure import measure, trace_for
from multi_dnn_ros.planning.samples import LoadKind
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.contention import loads_of, measure_contention
from multi_dnn_ros.profiling.network import load


def gpu(backend: str, rounds: int = 20) -> Target:
    return Target(torch.device("cuda", 0), backend, {"eager": Eager, "cuda_graph": CudaGraph}[backend], rounds=rounds)


@pytest.mark.parametrize("backend", ["eager", "cuda_graph"])
def test_the_layers_add_up(backend: str) -> None:
    """Coarse: 10 % is for `multi-dnn profile layers` on an idle GPU."""
    network = load("torchvision:resnet18")
    times = measure(trace_for(network.module, network.shape, gpu(backend)), gpu(backend), jobs=4)
    assert len(times.layers) == 48
    layers = sum(statistics.median(ms) for ms in times.layers)
    assert 0.6 < layers / statistics.median(times.whole) < 1.6


def test_limits_are_those_of_a_gpu() -> None:
    limits = measure_limits(gpu("eager"))
    assert limits.kind == "cuda"
    assert limits.flops_per_s > 1e12
    assert limits.bytes_per_s > 3e10


@pytest.mark.parametrize(("backend", "kinds"), [("eager", ("compute", "memory")), ("cuda_graph", ("compute", "dnn"))])
def test_contention_by_streams_and_slices(backend: str, kinds: tuple[LoadKind, ...]) -> None:
    target = gpu(backend, rounds=6)
    network = load("torchvision:resnet18")
    samples = measure_contention(
        [network], target, measure_limits(target), loads_of(kinds, (0, 4)),
        load_network=network, slices=(0, 16),
    )  # fmt: skip
    assert {sample.setting.sms for sample in samples} == {0, 16}
    assert {sample.load.kind for sample in samples} == {"none", *kinds}
    alone = sum(sample.ms for sample in samples if not sample.load.level and not sample.setting.sms)
    crowded = sum(sample.ms for sample in samples if str(sample.load) == "4 x compute" and not sample.setting.sms)
    assert crowded > alone
    rates = {sample.setting.sms: sample.setting.flops_per_s for sample in samples}
    assert rates[16] < 0.5 * rates[0]
    if backend == "cuda_graph":  # eager, launching takes longer than computing
        narrow = sum(sample.ms for sample in samples if not sample.load.level and sample.setting.sms)
        assert narrow > 1.5 * alone
