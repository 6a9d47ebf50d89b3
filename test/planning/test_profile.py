"""Counted work, measured times, and the profile that combines them."""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from profiling_fakes import CPU, SHAPE, FakeClock, Small, limits, target
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from multi_dnn_ros.backends.fused_activations import fuse
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.graph.cut import cut_graph
from multi_dnn_ros.planning import device
from multi_dnn_ros.planning.checked_file import ProfileError, read_checked
from multi_dnn_ros.planning.clock import HostClock
from multi_dnn_ros.planning.marks import MarkedStage
from multi_dnn_ros.planning.measure import Times, measure, trace_for
from multi_dnn_ros.planning.predictor import layers_of
from multi_dnn_ros.planning.profile import Profile, node_costs
from multi_dnn_ros.profiling.network import Network, profile_network
from multi_dnn_ros.profiling.report import layer_table, layers_csv, write_profile

NETWORK = Network("small", Small(), SHAPE)
#: conv, relu, depthwise, 1x1, add, pool (with its flatten), linear.
LAYERS = 7
EMPTY = 17


def fixed_times(traced, of, *, jobs, costs=None, **_) -> Times:
    """Layer i takes i + 1 ms in each of two rounds."""
    stages = tuple(cut_graph(traced.graph_module, jobs, costs=costs))
    layers = [float(number + 1) for number in range(sum(len(stage.layers) for stage in stages))]
    numbers = iter(layers)
    per_job = [sum(next(numbers) for _ in stage.layers) for stage in stages]
    return Times(
        stages, tuple((ms, ms) for ms in layers), tuple((ms, ms) for ms in per_job), (sum(layers),) * 2, disturbed=0
    )


def profiled(**options):
    return profile_network(NETWORK, target(), limits(), **{"jobs": 2, "timed": fixed_times, **options})


def test_work_is_computed_from_shapes() -> None:
    layers = profiled().layers
    assert [layer.kind for layer in layers] == [
        "convolution", "element-wise", "depthwise convolution", "1x1 convolution", "element-wise", "pooling",
        "fully connected",
    ]  # fmt: skip
    first, relu, depthwise, point, _, pool, last = layers
    assert first.module == "first"
    assert first.work.macs == 64 * 3 * 4 * 9
    assert first.work.parameters == 3 * 4 * 9 + 4
    assert first.work.bytes_read == 4 * (3 * 64 + 3 * 4 * 9 + 4)
    assert first.work.bytes_written == relu.work.bytes_read == 4 * 4 * 64
    assert (depthwise.work.macs, depthwise.groups, depthwise.window) == (64 * 4 * 9, 4, 9)
    assert point.work.macs == 64 * 16
    assert (relu.work.macs, relu.work.flops) == (0, 4 * 64)
    assert len(pool.nodes) > 1  # the following flatten is a view
    assert last.outputs == ((1, 5),)
    assert sum(layer.work.macs for layer in layers) == cost(NETWORK.module, (torch.zeros(SHAPE),)).macs
    assert first.work.intensity == pytest.approx(2 * first.work.macs / (first.work.moved))


def test_fused_operations_count_no_work() -> None:
    """On a GPU a ReLU after a convolution has no kernel of its own."""
    gpu = replace(target(), device=torch.device("cuda", 0))
    for where, kinds in ((replace(gpu, backend="cuda_graph"), ["view"]), (gpu, ["element-wise"])):
        traced = trace_for(Small(), SHAPE, where)
        layers = [layer for layer in layers_of(traced) if layer.operation.startswith("relu")]
        assert [layer.kind for layer in layers] == kinds
        assert [layer.work.flops > 0 for layer in layers] == [kind != "view" for kind in kinds]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_is_timed_on_a_gpu_in_channels_last(precision: str) -> None:
    """As the node runs them. Without a GPU, only what would run is checked."""
    flat = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 2)).eval()
    for processor, layout in ((torch.device("cuda", 0), torch.channels_last), (CPU, torch.contiguous_format)):
        where = replace(target(), device=processor, precision=precision)
        traced = trace_for(flat, SHAPE, where)
        weight = next(tensor for tensor in traced.graph_module.parameters() if tensor.ndim == 4)
        assert all(tensor.is_contiguous(memory_format=layout) for tensor in (*traced.inputs, weight))
        assert layers_of(traced)[0].work.bytes_read == 2 * (3 * 64 + 3 * 4 * 9 + 4)
        with torch.inference_mode():
            expected = flat(traced.inputs[0].float())
            torch.testing.assert_close(traced.graph_module(*traced.inputs)[0].float(), expected, atol=0.05, rtol=0.05)
    assert next(flat.parameters()).is_contiguous()


def test_a_fused_operations_time_counts_for_its_first_layer() -> None:
    class Order(HostClock):
        def mark(self, index: int) -> None:
            order.append(index)
            super().mark(index)

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is CONVOLUTION_RELU:
                order.append("convolution with ReLU")
            return function(*args, **(kwargs or {}))

    order: list[object] = []
    clock = Order()
    traced = trace_for(Small(), SHAPE, target())
    (stage,) = cut_graph(traced.graph_module, 1)
    clock.prepare(LAYERS + 1)
    marked = fuse(MarkedStage(stage, clock, 0))
    with torch.no_grad(), Calls():
        results = marked(traced.inputs)
    assert order == [0, "convolution with ReLU", *range(1, LAYERS + 1)]
    with torch.no_grad():
        torch.testing.assert_close(results, stage(traced.inputs))


def test_bounds_shares_and_sums() -> None:
    profile = profiled()
    assert profile.sum_ms == sum(range(1, LAYERS + 1))
    assert profile.closure == 1.0
    first = profile.layers[0]
    assert first.bound_ms == pytest.approx(max(first.work.flops, first.work.moved) / 1e6)
    assert first.distance == pytest.approx(1.0 / first.bound_ms)
    assert sum(job.layers for job in profile.jobs) == LAYERS
    assert sum(job.work.macs for job in profile.jobs) == sum(layer.work.macs for layer in profile.layers)
    assert [job.ms.p50 for job in profile.jobs] == [job.layers_ms for job in profile.jobs]


def test_times_are_gaps_between_marks_minus_the_cost_of_a_mark() -> None:
    traced = trace_for(NETWORK.module, SHAPE, target())
    gaps = [1.0, 2.0, 3.0, 4.0, 99.0, 5.0, 6.0, 0.1]  # 99: from the first job to the second
    clocks = iter([FakeClock({3: [10.0, 11.0]}), FakeClock({EMPTY: [0.25] * 16, LAYERS + 2: gaps})])

    def count(node) -> float:
        return 1.0

    times = measure(traced, target(), jobs=2, costs=count, make_clock=lambda: next(clocks), preemptions=lambda: 0)
    assert [len(stage.layers) for stage in times.stages] == [4, 3]
    assert [of[0] for of in times.layers] == [0.75, 1.75, 2.75, 3.75, 4.75, 5.75, 0.0]
    assert times.whole == (21.0,) * 4
    assert [of[0] for of in times.jobs] == [10.0, 11.0]
    assert times.disturbed == 0


def test_a_layer_is_a_stage_where_the_backend_compiles_stages() -> None:
    traced = trace_for(NETWORK.module, SHAPE, target())
    empty = {EMPTY: [0.5] * 16, 2: [0.5]}  # 16 stages against one: half a millisecond for each of the other 15
    clocks = iter([FakeClock({3: [10.0, 11.0]}), FakeClock({**empty, LAYERS + 1: [1.0] * LAYERS})])
    times = measure(
        traced, target("torchscript"), jobs=2, make_clock=lambda: next(clocks), preemptions=lambda: 0
    )  # fmt: skip
    assert [of[0] for of in times.layers] == [0.5] * LAYERS


def test_marks_do_not_change_results_and_the_host_clock_counts_nanoseconds() -> None:
    reading = itertools.count(0, 1_000_000)
    clock = HostClock(lambda: next(reading))
    clock.prepare(3)
    for index in range(3):
        clock.mark(index)
    assert clock.gaps_ms() == [1.0, 1.0]

    from multi_dnn_ros.planning.marks import MarkedStage

    traced = trace_for(NETWORK.module, SHAPE, target())
    (stage,) = cut_graph(traced.graph_module, 1)
    clock.prepare(LAYERS + 1)
    (marked,) = MarkedStage(stage, clock, 0)(traced.inputs)
    assert torch.equal(marked, stage(traced.inputs)[0])
    assert len(clock.gaps_ms()) == LAYERS


def test_preempted_rounds_are_repeated() -> None:
    traced = trace_for(NETWORK.module, SHAPE, target())
    slow = itertools.cycle([50.0, 10.0])
    lost = itertools.count()

    class Slow(FakeClock):
        def gaps_ms(self) -> list[float]:
            return [next(slow)]

    clocks = iter([Slow({}), FakeClock({EMPTY: [0.0] * 16, LAYERS + 1: [1.0] * LAYERS})])
    state = {"calls": 0, "switches": 0}

    def switches() -> int:
        """Every second round is preempted."""
        state["calls"] += 1
        state["switches"] += state["calls"] % 8 == 2
        return state["switches"]

    times = measure(traced, target(), jobs=1, make_clock=lambda: next(clocks), preemptions=switches)
    assert (len(times.whole), times.disturbed) == (4, 0)
    never = measure(
        traced, target(), jobs=1, preemptions=lambda: next(lost), now=itertools.count(0.0, 0.1).__next__
    )  # fmt: skip
    assert len(never.whole) == 4
    assert never.disturbed == 8
    late = measure(traced, target(rounds=50), jobs=1, preemptions=lambda: 0, now=itertools.count(0.0, 100.0).__next__)
    assert len(late.whole) == 5


def test_cutting_by_measured_times_balances_them() -> None:
    assert profiled(cut_by="measured", jobs=2).imbalance < profiled(cut_by="count", jobs=2).imbalance
    traced = trace_for(Small(8), SHAPE, target())
    costs = node_costs(((layer, layer.ms.p50) for layer in profiled().layers), "the profile")
    with pytest.raises(ProfileError, match="has no operation"):
        cut_graph(trace_for(nn.Sequential(nn.Softmax(1)), SHAPE, target()).graph_module, 2, costs=costs)
    assert len(cut_graph(traced.graph_module, 3, costs=costs)) == 3


def read_profile(path: Path) -> Profile:
    return read_checked(path, Profile, "profile", "multi-dnn profile")


def test_written_and_read(tmp_path: Path) -> None:
    profile = profiled(answer=42)
    paths = write_profile(tmp_path / "out", profile)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in paths}
    assert read_profile(paths[0]) == profile
    assert json.loads(paths[0].read_text())["provenance"] == {"answer": 42}
    rows = list(csv.DictReader(io.StringIO(layers_csv(profile))))
    assert [row["layer"] for row in rows] == [layer.name for layer in profile.layers]
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1.0, abs=1e-4)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths[2:])
    assert "1x5" in layer_table(profile, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a profile"),
        ("{", "not a profile"),
        ('{"format": "multi_dnn_ros profile 2"}', "not a profile"),
        ("[" * 100_000, "not a profile"),
    ],
)
def test_an_invalid_profile_file_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        read_profile(path)
    with pytest.raises(ProfileError, match=r"nowhere\.json: cannot be read"):
        read_profile(tmp_path / "nowhere.json")


def test_limits_are_measured_once_for_a_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache" / "devices.json"
    found = device.limits_of(target(), path, measure=lambda of: limits())
    assert device.limits_of(target(), path, measure=lambda of: pytest.fail("measured again")) == found
    path.write_text("{}")
    assert device.limits_of(target(), path, keep=False, measure=lambda of: limits()) == found
    assert "devices.json are not used: not a file of device limits" in caplog.text
    assert path.read_text() == "{}"  # busy: nothing is kept
    measured = device.measure_limits(target(), scale=0.1)
    assert measured.flops_per_s > 1e6
    assert measured.bytes_per_s > 1e6
    clock = FakeClock({2: [2.0]})
    assert device.measure_limits(target(), clock, scale=0.1).flops_per_s == pytest.approx(
        max(2 * 102**3, 18 * 128**2 * 8**2) / 2e-3
    )


def test_a_busy_device_is_reported() -> None:
    assert "cpu is busy: other processes use 47% of it" in device.busy_warning(CPU, lambda of: 0.47)
    assert device.busy_warning(CPU, lambda of: 0.02) == ""
    assert device.busy_warning(CPU, lambda of: None) == ""
    load = device.foreign_load(CPU, 0.05)
    assert load is not None
    assert 0.0 <= load <= 1.0


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.export.save(torch.export.export(Small(), (torch.zeros(SHAPE),)), tmp_path / "small.pt2")
    path = tmp_path / "devices.json"
    device.limits_of(target(), path, measure=lambda of: limits())
    arguments = ["profile", "layers", str(tmp_path / "small.pt2"), "--repeats", "3", "--device", "cpu", "--limits",
                 str(path), "--jobs", "2", "--output", str(tmp_path / "out"), "--threads", str(torch.get_num_threads()),
                 "--summary", str(tmp_path / "summary.json"), "--cut", "measured"]  # fmt: skip
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "sum of the layers" in out
    assert "1.0 GFLOP/s, 1.0 GB/s" in out
    profile = read_profile(tmp_path / "out" / "profile.json")
    assert profile.backend == "onnxruntime"
    assert len(profile.layers) == LAYERS
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["models"][0]["sum_of_layers_ms"] == pytest.approx(profile.sum_ms)
    assert summary["command"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["layers", "builtin:sofa"], 1, "model is 'builtin:sofa'; allowed: builtin:lane"),
        (["layers", "builtin:lane", "--size", "64x64"], 1, "argument size is 64x64; builtin:lane takes 320x192 only"),
        (["layers", "builtin:lane", "--backend", "abacus"], 2, "--backend is 'abacus'; allowed: auto, eager"),
        (["layers", "builtin:lane", "--backend", "cuda_graph", "--device", "cpu"], 1, "'cuda_graph', but the device"),
        (["layers", "nowhere.onnx"], 1, "model is 'nowhere.onnx': there is no such file"),
        (["layers", "a/net.onnx", "b/net.onnx", "--output", "out"], 2, "models would be written to out/net.onnx"),
    ],
)
def test_failure_is_one_line(arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.splitlines()[-1].startswith("multi-dnn profile: error: ")
