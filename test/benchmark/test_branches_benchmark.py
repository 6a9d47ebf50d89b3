"""`multi-dnn benchmark branches` on a CPU, its networks, and branches on threads. On a GPU: test/gpu/backends."""

from __future__ import annotations

import json
import re

import pytest
import torch
from tiny_exports import TinyMap, export
from torch import nn
from torch.nn import functional

from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.benchmark import branch_networks, cyclic_windows
from multi_dnn_ros.benchmark.branch_networks import TRACKERS, make_network
from multi_dnn_ros.benchmark.branch_threads import ThreadedStage
from multi_dnn_ros.benchmark.branches import gpu_conditions
from multi_dnn_ros.benchmark.cyclic_windows import SINGLE_FEATURE_WINDOWS, MergedHeads, SeparateHeads, WindowHead
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.graph.cut import GraphStage, cut_module

COMMAND = ["benchmark", "branches", "--device", "cpu", "--size", "64x64", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _small_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer with a quarter of the heads: tracing takes most of the time, and the rest has no other operations."""
    monkeypatch.setattr(cyclic_windows, "LAYERS", 1)
    smaller = {name: (with_backbone, windows[::4]) for name, (with_backbone, windows) in TRACKERS.items()}
    monkeypatch.setattr(branch_networks, "TRACKERS", smaller)
    monkeypatch.setattr(branch_networks, "SINGLE_FEATURE_WINDOWS", SINGLE_FEATURE_WINDOWS[::4])


class Fork(nn.Module):
    """Two branches of different length, whose results are joined and split by views."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 8, 3, padding=1))
        self.short = nn.Conv2d(3, 8, 5, padding=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        left, right = torch.chunk(torch.cat([self.long(image), self.short(image)], 1), 2, 1)
        return left.transpose(1, 2) + right.transpose(1, 2).exp()


EXAMPLE = (torch.zeros(1, 3, 64, 64),)


def stage_of(module: nn.Module) -> GraphStage:
    torch.manual_seed(0)
    (stage,) = cut_module(module.eval(), EXAMPLE, 1)
    return stage


@pytest.mark.long  # the short test below has one network, without heads to merge
def test_networks_are_compared_on_threads_and_written_with_their_provenance(tmp_path, capsys):
    output, plot = tmp_path / "branches.json", tmp_path / "branches.png"
    command = [*COMMAND, "encoder-equal", "tracker-windows", "--streams", "2", "4"]
    assert main([*command, "--output", str(output), "--plot", str(plot)]) == 0
    figures = json.loads(output.read_text())
    assert figures["command"].split()[0] == "multi-dnn"
    assert figures["versions"]["torch"]
    encoder, tracker = figures["networks"]
    assert set(encoder["ms"]) == {"serial", "one thread", "2 streams", "4 streams", "merged"}
    assert set(tracker["ms"]) == {"serial", "one thread", "2 streams", "4 streams"}
    for each in figures["networks"]:
        assert all(times["samples"] == 2 and times["min"] > 0 for times in each["ms"].values())
        for name, ratio in each["over_serial"].items():
            assert ratio == pytest.approx(each["ms"][name]["p50"] / each["ms"]["serial"]["p50"])
        assert each["streams_used"]["serial"] == 1
        assert each["streams_used"]["2 streams"] == 2
        assert 0 < each["critical_path_over_serial"] < 1
        assert each["events"]["2"] > 0
        assert each["critical_path_over_serial"] <= each["predicted_over_serial"]["4"] * (1 + 1e-9)
    assert tracker["frames_per_s"]["serial"] == pytest.approx(1e3 / tracker["ms"]["serial"]["p50"])
    assert "frames_per_s" not in encoder
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "tracker-windows" in capsys.readouterr().out


def test_a_network_that_cannot_be_measured_does_not_stop_the_others(tmp_path, capsys):
    output = tmp_path / "branches.json"
    model = str(export(Fork(), tmp_path / "fork.onnx"))
    command = ["benchmark", "branches", "builtin:nothing", model, "--device", "cpu", "--rounds", "2", "--streams", "2"]
    assert main([*command, "--output", str(output)]) == 1
    figures = json.loads(output.read_text())
    (network,) = figures["networks"]
    assert network["network"] == model
    assert set(network["ms"]) == {"serial", "one thread", "2 streams"}
    assert all(times["samples"] == 2 and times["min"] > 0 for times in network["ms"].values())
    for name, ratio in network["over_serial"].items():
        assert ratio == pytest.approx(network["ms"][name]["p50"] / network["ms"]["serial"]["p50"])
    assert figures["versions"]["torch"]
    assert "'builtin:nothing'; allowed:" in figures["failed"]["builtin:nothing"]
    assert "builtin:nothing is not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["encoder-equal", "--size", "65x64"], "--size is 65x64; allowed for encoder-equal: multiples of 64"),
        (["encoder-equal", "--precision", "fp16"], "fp16"),
        (["encoder-equal", "--streams", "3"], "invalid choice: 3"),
        (["map.onnx", "--size", "96x64", "--inductor"], "Inductor and merged siblings are compared on a GPU only"),
    ],
)
def test_bad_arguments_are_named(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    export(TinyMap(), tmp_path / "map.onnx")
    try:
        code = main([*COMMAND, *options])
    except SystemExit as error:
        code = error.code
    assert code != 0
    printed = capsys.readouterr()
    assert words in printed.out + printed.err


@pytest.mark.parametrize("streams", [1, 2, 8])
def test_branches_on_threads_compute_the_same(streams: int):
    stage, image = stage_of(Fork()), noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = stage(image)
    threaded = ThreadedStage(stage, streams, 1)
    try:
        assert threaded.threads == min(streams, 2)
        for _ in range(20):
            check_agreement(threaded(image), expected, 1e-5)
    finally:
        threaded.close()


@pytest.mark.parametrize("branch", ["long", "short"])
def test_an_operation_that_fails_ends_all_threads_of_the_run(branch: str):
    stage, image = stage_of(Fork()), noise_like(EXAMPLE)
    threaded = ThreadedStage(stage, 2, 1)
    constants = threaded._planned._constants
    weight = next(node for node in constants if branch in str(node.target) and "weight" in str(node.target))
    original = constants[weight]
    try:
        constants[weight] = torch.zeros(1, 1, 1)
        with pytest.raises(RuntimeError):
            threaded(image)
        constants[weight] = original
        check_agreement(threaded(image), stage(image), 1e-5)
    finally:
        threaded.close()


def test_inductor_is_measured_on_one_and_on_several_streams():
    network = make_network("encoder-equal", (64, 64))
    found = {each.name: (each.backend, each.streams) for each in gpu_conditions(network, (2, 4), inductor=True)}
    assert found == {
        "serial": ("cuda_graph", 1),
        "2 streams": ("cuda_graph", 2),
        "4 streams": ("cuda_graph", 4),
        "merged": ("cuda_graph", 1),
        "inductor": ("inductor", 1),
        "inductor, 2 streams": ("inductor", 2),
        "inductor, 4 streams": ("inductor", 4),
    }
    assert not any(each.name.startswith("inductor") for each in gpu_conditions(network, (2, 4)))
    merged = {each.name: each.streams for each in gpu_conditions(network, (2, 4), siblings=True)
              if each.merge_siblings == "always"}  # fmt: skip
    assert merged == {"siblings merged": 1, "siblings merged, 2 streams": 2, "siblings merged, 4 streams": 4}


def maps() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 16, 8, 256, generator=generator), torch.randn(1, 8, 8, 256, generator=generator)


def test_a_head_with_windows_of_one_feature_is_ordinary_attention():
    torch.manual_seed(0)
    head = WindowHead(256, 32, 1)
    search, template = maps()
    tokens = torch.cat([search.flatten(1, 2), template.flatten(1, 2)], 1)
    expected = functional.scaled_dot_product_attention(
        head.query(search).flatten(1, 2), head.key(tokens), head.value(tokens)
    )
    assert torch.allclose(head(search, template).flatten(1, 2), expected, atol=1e-5)


def test_keys_that_are_shifted_within_their_windows_change_nothing():
    """Every cyclic shift of a window is among the keys, so a shifted template gives the same result."""
    torch.manual_seed(0)
    head = WindowHead(256, 32, 4)
    search, template = maps()
    shifted = template.view(1, 2, 4, 2, 4, 256).roll((1, 3), (2, 4)).view(template.shape)
    assert torch.allclose(head(search, template), head(search, shifted), atol=1e-5)
    assert head(search, template).shape == (1, 16, 8, 32)


def test_merged_heads_compute_the_same_as_separate_ones():
    torch.manual_seed(0)
    separate = SeparateHeads(SINGLE_FEATURE_WINDOWS)
    assert torch.allclose(MergedHeads(separate)(*maps()), separate(*maps()), atol=1e-5)


def test_heads_with_larger_windows_cannot_be_merged():
    with pytest.raises(ValueError, match=re.escape("windows of 1, 1, 2, 2, 4, 4, 8, 8 features")):
        MergedHeads(SeparateHeads(cyclic_windows.WINDOWS))


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_returns_maps_of_its_search_region(name: str):
    network = make_network(name, (128, 64))
    with torch.inference_mode():
        results = network.module(*network.inputs)
    if network.frames:
        assert [tuple(each.shape) for each in results] == [(1, 1, 8, 16), (1, 4, 8, 16)]
        assert all(bool(each.isfinite().all()) for each in results)
    else:
        assert tuple(results.shape) == (1, 8, 16, 256)
    assert (network.merged is None) == name.endswith("windows")


def test_a_batch_of_images_and_a_network_without_branches(tmp_path):
    output = tmp_path / "figures.json"
    command = ["benchmark", "branches", "builtin:lane", "--device", "cpu", "--size", "64x48", "--rounds", "2"]
    assert main([*command, "--images", "3", "--streams", "--output", str(output)]) == 0
    (found,) = json.loads(output.read_text())["networks"]
    assert found["inputs"] == [[3, 3, 48, 64]]
    assert set(found["ms"]) == {"serial", "one thread"}


def test_a_tracker_takes_one_image(capsys):
    assert main(["benchmark", "branches", "encoder-equal", "--device", "cpu", "--images", "2"]) == 1
    assert "encoder-equal is not measured: --images is 2; encoder-equal takes one image" in capsys.readouterr().out


def test_a_size_that_windows_do_not_divide_is_rejected():
    with pytest.raises(UsageError, match="--size is 100x64; allowed for tracker-equal: multiples of 64"):
        make_network("tracker-equal", (100, 64))


@pytest.mark.parametrize("scenario", ["branches"])
def test_a_size_that_does_not_fit_a_later_network_does_not_stop_the_others(scenario, tmp_path, monkeypatch, capsys):
    figures = {
        "branches": {"ms": {"serial": {"p50": 1.0}}, "over_serial": {}, "critical_path_over_serial": 0.5},
        "siblings": {"siblings": [2], "backends": {}},
    }[scenario]

    def measure(name, *arguments, size, **options):
        make_network(name, size)
        return {"network": name, **figures}

    monkeypatch.setattr(f"multi_dnn_ros.benchmark.{scenario}.measure_{scenario}", measure)
    output = tmp_path / "figures.json"
    command = ["benchmark", scenario, "builtin:lane", "tracker-equal", "--device", "cpu", "--size", "320x240"]
    assert main([*command, "--output", str(output)]) == 1
    found = json.loads(output.read_text())
    assert [each["network"] for each in found["networks"]] == ["builtin:lane"]
    assert found["failed"] == {"tracker-equal": "--size is 320x240; allowed for tracker-equal: multiples of 64"}
    assert "tracker-equal is not measured: --size is 320x240" in capsys.readouterr().out


@pytest.mark.parametrize("scenario", ["branches"])
def test_an_interrupted_run_keeps_the_networks_that_it_has_measured(scenario, tmp_path, monkeypatch, capsys):
    def measure(name, *arguments, **options):
        if name == "encoder-equal":
            raise KeyboardInterrupt
        times = {"serial": {"p50": 1.0}, "2 streams": {"p50": 0.8}}
        return {"network": name, "ms": times, "over_serial": {"2 streams": 0.8}, "critical_path_over_serial": 0.5}

    monkeypatch.setattr(f"multi_dnn_ros.benchmark.{scenario}.measure_{scenario}", measure)
    output, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    options = {
        "branches": ["--device", "cpu", "--plot", str(plot)],
        "siblings": ["--device", "cpu"],
        "precisions": ["--precisions", "int8"],
    }[scenario]
    command = ["benchmark", scenario, "builtin:lane", "encoder-equal", "--output", str(output)]
    assert main([*command, *options]) == 130
    assert [each["network"] for each in json.loads(output.read_text())["networks"]] == ["builtin:lane"]
    assert scenario != "branches" or plot.read_bytes().startswith(b"\x89PNG")
