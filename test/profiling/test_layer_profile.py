"""The profile of a network: tables, files, the roofline, and the limits of the device."""

from __future__ import annotations

import pytest
import torch
from profiling_fakes import LAYERS, SHAPE, Small, limits, target, traced

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.profiling import limits as module
from multi_dnn_ros.profiling.layer_profile import (
    Profile,
    Times,
    closing_lines,
    job_table,
    kind_table,
    layer_table,
    profile_network,
)
from multi_dnn_ros.profiling.limits import measure_limits
from multi_dnn_ros.profiling.network import Network


def test_work_is_computed_from_shapes() -> None:
    layers = traced().layers()
    assert [layer.work.kind for layer in layers] == [
        "convolution", "element-wise", "depthwise convolution", "1x1 convolution", "element-wise", "pooling",
        "fully connected",
    ]  # fmt: skip
    first, relu, depthwise, _, _, pool, last = layers
    assert (first.work.macs, first.work.parameters) == (64 * 3 * 4 * 9, 3 * 4 * 9 + 4)
    assert first.work.bytes_read == 4 * (3 * 64 + 3 * 4 * 9 + 4)
    assert first.work.bytes_written == relu.work.bytes_read == 4 * 4 * 64
    assert (first.work.channels_in, first.work.channels_out, first.work.pixels) == (3, 4, 64)
    assert (depthwise.work.macs, depthwise.work.groups, depthwise.work.window) == (64 * 4 * 9, 4, 9)
    assert len(pool.nodes) > 1  # the following flatten is a view
    assert last.outputs == ((1, 5),)
    assert sum(layer.work.macs for layer in layers) == cost(Small(), (torch.zeros(SHAPE),)).macs
    assert traced().layers(torch.float16)[0].work.moved == first.work.moved // 2


def fixed_times(traced, of, *, jobs, costs=None, **_) -> Times:
    """Layer i takes i + 1 ms in each of two rounds, and the jobs half a millisecond more each."""
    stages = tuple(cut_graph(traced.graph_module, jobs, costs=costs))
    layers = [float(number + 1) for number in range(LAYERS)]
    numbers = iter(layers)
    per_job = [sum(next(numbers) for _ in stage.layers) + 0.5 for stage in stages]
    return stages, [(ms, ms) for ms in per_job], [(ms, ms) for ms in layers]


def profiled(**options) -> Profile:
    network = Network("small", Small(), SHAPE)
    return profile_network(network, target(), limits(), **{"jobs": 2, "timed": fixed_times, **options})


def test_bounds_shares_and_sums() -> None:
    profile = profiled()
    assert profile.sum_ms == sum(range(1, LAYERS + 1))
    assert profile.whole.p50 == profile.sum_ms + 1.0
    first = profile.layers[0]
    assert first.bound_ms == pytest.approx(max(first.layer.work.flops, first.layer.work.moved) / 1e6)
    assert [timed.job for timed in profile.layers] == sorted(timed.job for timed in profile.layers)
    assert closing_lines(profile)[0] == "sum of the layers 28.000 ms, whole network 29.000 ms: -3.4%"
    assert "1x5" in layer_table(profile, 1)
    assert "| fully connected" in layer_table(profile, 1)
    assert "| convolution " in kind_table(profile)
    assert len(job_table(profile).splitlines()) == 2 + 2


def test_jobs_balance_measured_times() -> None:
    assert profiled(measured_cut=True).imbalance < 1.2


@pytest.mark.parametrize("backend", ["eager", "onnxruntime"])
def test_jobs_and_layers_are_timed_by_the_backend(backend: str) -> None:
    """A layer of 9x9 takes longer than one of 1x1."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 64, 9), torch.nn.ReLU()).eval()
    done: list[tuple[int, int]] = []
    where = target(backend, rounds=5)
    found = profile_network(
        Network("sizes", network, (1, 3, 64, 64)), where, limits(), jobs=2, progress=lambda *step: done.append(step)
    )
    assert len(found.jobs) == 2
    assert min(job.p50 for job in found.jobs) > 0.0
    assert found.layers[1].ms.p50 > found.layers[0].ms.p50
    assert done[-1] == (5, 5)


def test_limits_are_the_fastest_of_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "timed_ms", lambda calls, device: [4.0, 2.0, *[3.0] * (len(calls) - 2)])
    found = measure_limits(target(), scale=0.1)
    assert found.flops_per_s == pytest.approx(max(2 * 102**3, 18 * 128**2 * 8**2) / 2e-3)
    assert found.bytes_per_s == pytest.approx(2 * (1 << 20) / 2e-3)
    assert found.bound_ms(2 * found.flops_per_s, found.bytes_per_s) == pytest.approx(2e3)
    assert found.ridge == found.flops_per_s / found.bytes_per_s


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["builtin:sofa"], 1, "model is 'builtin:sofa'; allowed: builtin:lane"),
        (["builtin:lane", "--size", "64x64"], 1, "argument size is 64x64; builtin:lane takes 320x192 only"),
        (["builtin:lane", "--backend", "abacus"], 2, "--backend is 'abacus'; allowed: auto, eager"),
        (["builtin:lane", "--backend", "cuda_graph", "--device", "cpu"], 1, "'cuda_graph', but the device"),
        (["nowhere.onnx"], 1, "MODEL is 'nowhere.onnx': there is no such file"),
    ],
)
def test_failure_is_one_line(arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "layers", *arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.splitlines()[-1].startswith("multi-dnn profile: error: ")
