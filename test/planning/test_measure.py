"""The work of layers, and the times of jobs and layers through a backend."""

from __future__ import annotations

import statistics

import pytest
import torch
from profiling_fakes import CPU, LAYERS, SHAPE, Small, target, traced
from torch import nn

from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.models.layers import node_costs
from multi_dnn_ros.planning.clock import timed_ms
from multi_dnn_ros.planning.measure import LayerChain, measure, trace_for


def test_work_is_computed_from_shapes() -> None:
    layers = traced().layers()
    assert [layer.work.kind for layer in layers] == [
        "convolution", "element-wise", "depthwise convolution", "1x1 convolution", "element-wise", "pooling",
        "fully connected",
    ]  # fmt: skip
    first, relu, depthwise, point, _, pool, last = layers
    assert first.module == "first"
    assert first.work.macs == 64 * 3 * 4 * 9
    assert first.work.parameters == 3 * 4 * 9 + 4
    assert first.work.bytes_read == 4 * (3 * 64 + 3 * 4 * 9 + 4)
    assert first.work.bytes_written == relu.work.bytes_read == 4 * 4 * 64
    assert (first.work.channels_in, first.work.channels_out, first.work.pixels) == (3, 4, 64)
    assert (depthwise.work.macs, depthwise.work.groups, depthwise.work.window) == (64 * 4 * 9, 4, 9)
    assert point.work.macs == 64 * 16
    assert (relu.work.macs, relu.work.flops) == (0, 4 * 64)
    assert len(pool.nodes) > 1  # the following flatten is a view
    assert last.outputs == ((1, 5),)
    assert sum(layer.work.macs for layer in layers) == cost(Small(), (torch.zeros(SHAPE),)).macs
    assert first.work.intensity == pytest.approx(2 * first.work.macs / first.work.moved)
    half = traced().layers(torch.float16)[0].work
    assert (half.flops, half.moved) == (first.work.flops, first.work.moved // 2)


def test_costs_of_layers_cut_the_network() -> None:
    layers = traced().layers()
    costs = node_costs(zip(layers, range(1, LAYERS + 1), strict=True))
    stages = cut_graph(traced().graph_module, 2, costs=costs)
    assert [stage.cost_s for stage in stages] == [pytest.approx(15e-3), pytest.approx(13e-3)]
    with pytest.raises(ValueError, match="have no operation 'softmax"):
        cut_graph(traced(nn.Softmax(1)).graph_module, 1, costs=costs)


def test_calls_are_timed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([1.0, 1.5, 3.5])
    monkeypatch.setattr("multi_dnn_ros.planning.clock.time.perf_counter", lambda: next(now_s))
    called: list[str] = []
    assert timed_ms([lambda: called.append("a"), lambda: called.append("b")], CPU) == [500.0, 2000.0]
    assert called == ["a", "b"]


@pytest.mark.parametrize("backend", ["eager", "onnxruntime"])
def test_jobs_and_layers_are_timed_by_the_backend(backend: str) -> None:
    where = target(backend, rounds=3)
    network = Small()
    done: list[tuple[int, int]] = []
    times = measure(traced(network, where), where, jobs=2, progress=lambda *step: done.append(step))
    assert len(times.stages) == len(times.jobs) == 2
    assert len(times.layers) == LAYERS
    assert {len(samples) for samples in (*times.jobs, *times.layers)} == {3}
    assert min(min(samples) for samples in times.jobs) > 0.0
    assert done[-1] == (3, 3)
    assert all(parameter.grad is None and parameter.device == CPU for parameter in network.parameters())


def test_the_cost_of_a_stage_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage of a chain seems to take 3 ms, of which 2 are those of a call: 16 stages take 30 ms more than one."""
    monkeypatch.setattr(
        "multi_dnn_ros.planning.measure.timed_ms", lambda calls, device: [3.0 + 15.0 * (len(calls) == 1)] * len(calls)
    )
    assert LayerChain(traced(), target())() == [pytest.approx(3.0 - (48.0 - 18.0) / 15)] * LAYERS


def test_larger_layers_take_longer() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 64, 9), nn.ReLU()).eval()
    where = target(rounds=5)
    times = measure(trace_for(network, (torch.rand(1, 3, 64, 64),), where), where, jobs=1)
    small, large, _ = (statistics.median(samples) for samples in times.layers)
    assert large > small
