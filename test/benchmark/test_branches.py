"""`multi-dnn benchmark paper --branches` on a CPU, its networks, and branches on threads. On a GPU: test/gpu."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.benchmark.paper import branch_networks
from multi_dnn_ros.benchmark.paper.branch_networks import ENCODERS, WindowHead, make_network
from multi_dnn_ros.benchmark.paper.branches import ThreadedStage
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.graph.cut import GraphStage, cut_module


@pytest.fixture(autouse=True)
def _small_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer with a quarter of the heads: tracing takes most of the time, and the rest has no other operations."""
    monkeypatch.setattr(branch_networks, "LAYERS", 1)
    monkeypatch.setattr(branch_networks, "ENCODERS", {name: windows[::4] for name, windows in ENCODERS.items()})


def test_the_branch_table_at_a_small_size_through_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "branches.json"
    command = ["benchmark", "paper", "--branches", "encoder-windows", "builtin:lane", "no_such_network.pt2"]
    assert main([*command, "--device", "cpu", "--size", "64x64", "--repeats", "1", "--output", str(output)]) == 1
    found = json.loads(output.read_text())
    assert [each["network"] for each in found["networks"]] == ["encoder-windows", "builtin:lane"]
    assert list(found["failed"]) == ["no_such_network.pt2"]
    network = found["networks"][0]
    assert set(network["ms"]) == {"serial", "2 streams", "4 streams", "8 streams"}
    assert all(times["samples"] == 40 for times in network["ms"].values())
    assert network["streams_used"]["2 streams"] == 2
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "| encoder-windows " in capsys.readouterr().out


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


@pytest.mark.parametrize("streams", [1, 2, 8])
def test_branches_on_threads_compute_the_same(streams: int) -> None:
    stage, image = stage_of(Fork()), noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = stage(image)
    with ExitStack() as stack:
        threaded = ThreadedStage(stage, streams, 1, stack)
        assert len(threaded.pools) == min(streams, 2)
        for _ in range(20):
            check_agreement(threaded(image), expected, 1e-5)
        with pytest.raises(RuntimeError):
            threaded((image[0].expand(1, 3, 64, 64)[:, :2],))
        check_agreement(threaded(image), expected, 1e-5)


def maps() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 16, 8, 256, generator=generator), torch.randn(1, 8, 8, 256, generator=generator)


def test_a_head_with_windows_of_one_feature_is_ordinary_attention() -> None:
    torch.manual_seed(0)
    head = WindowHead(256, 32, 1)
    search, template = maps()
    tokens = torch.cat([search.flatten(1, 2), template.flatten(1, 2)], 1)
    expected = functional.scaled_dot_product_attention(
        head.query(search).flatten(1, 2), head.key(tokens), head.value(tokens)
    )
    assert torch.allclose(head(search, template).flatten(1, 2), expected, atol=1e-5)


def test_keys_that_are_shifted_within_their_windows_change_nothing() -> None:
    """Every cyclic shift of a window is among the keys, so a shifted template gives the same result."""
    torch.manual_seed(0)
    head = WindowHead(256, 32, 4)
    search, template = maps()
    shifted = template.view(1, 2, 4, 2, 4, 256).roll((1, 3), (2, 4)).view(template.shape)
    assert torch.allclose(head(search, template), head(search, shifted), atol=1e-5)
    assert head(search, template).shape == (1, 16, 8, 32)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_returns_a_map_of_its_search_region(name: str) -> None:
    network = make_network(name, (128, 64))
    with torch.inference_mode():
        assert network.module(*network.inputs).shape == (1, 8, 16, 256)
