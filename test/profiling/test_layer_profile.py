"""The profile of a network: tables, files, the roofline, and the limits of the device."""

from __future__ import annotations

import pytest
import torch
from profiling_fakes import CPU, LAYERS, SHAPE, Small, limits, target, taught, traced

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.planning.measure import Times
from multi_dnn_ros.profiling import limits as module
from multi_dnn_ros.profiling.layer_profile import (
    Profile,
    closing_lines,
    job_table,
    kind_table,
    layer_table,
    profile_network,
)
from multi_dnn_ros.profiling.limits import busy_warning, measure_limits
from multi_dnn_ros.profiling.network import Network


def fixed_times(traced, of, *, jobs, costs=None, **_) -> Times:
    """Layer i takes i + 1 ms in each of two rounds, and the jobs half a millisecond more each."""
    stages = tuple(cut_graph(traced.graph_module, jobs, costs=costs))
    layers = [float(number + 1) for number in range(LAYERS)]
    numbers = iter(layers)
    per_job = [sum(next(numbers) for _ in stage.layers) + 0.5 for stage in stages]
    return Times(stages, tuple((ms, ms) for ms in per_job), tuple((ms, ms) for ms in layers))


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


def test_jobs_balance_measured_or_predicted_times() -> None:
    assert profiled(measured_cut=True).imbalance < 1.2
    even = profiled(predictor=taught(traced().layers()))  # which predicts 2 ms for each layer
    assert [sum(timed.job == job for timed in even.layers) for job in (0, 1)] in ([3, 4], [4, 3])
    other = profiled(predictor=taught(traced().layers(), device="Orin"))
    assert other.unpredicted[0].startswith("it was trained on 'Orin'")
    assert [timed.job for timed in other.layers] == [timed.job for timed in profiled().layers]


def test_limits_are_the_fastest_of_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "timed_ms", lambda calls, device: [4.0, 2.0, *[3.0] * (len(calls) - 2)])
    found = measure_limits(target(), scale=0.1)
    assert found.flops_per_s == pytest.approx(max(2 * 102**3, 18 * 128**2 * 8**2) / 2e-3)
    assert found.bytes_per_s == pytest.approx(2 * (1 << 20) / 2e-3)
    assert found.bound_ms(2 * found.flops_per_s, found.bytes_per_s) == pytest.approx(2e3)
    assert found.ridge == found.flops_per_s / found.bytes_per_s


def test_a_busy_device_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for used, text in ((47.0, "cpu is busy: other processes use 47% of it, so times are too long"), (2.0, "")):
        monkeypatch.setattr(module.psutil, "cpu_percent", lambda seconds, used=used: used)
        assert busy_warning(CPU) == text
    assert busy_warning(torch.device("cuda", 99)) == ""  # no such GPU, or no library that reads it


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["builtin:sofa"], 1, "model is 'builtin:sofa'; allowed: builtin:lane"),
        (["builtin:lane", "--size", "64x64"], 1, "argument size is 64x64; builtin:lane takes 320x192 only"),
        (["builtin:lane", "--backend", "abacus"], 2, "--backend is 'abacus'; allowed: auto, eager"),
        (["builtin:lane", "--backend", "cuda_graph", "--device", "cpu"], 1, "'cuda_graph', but the device"),
        (["nowhere.onnx"], 1, "MODEL is 'nowhere.onnx': there is no such file"),
        (["builtin:lane", "--cut", "predicted"], 2, "--cut predicted and --predictor must be given together"),
    ],
)
def test_failure_is_one_line(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], hasty: None
) -> None:
    assert main(["profile", "layers", *arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.splitlines()[-1].startswith("multi-dnn profile: error: ")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on looking whether the device is busy."""
    monkeypatch.setattr(module, "busy_warning", lambda device: "")
