"""With images, a decomposed layer returns what the original does on such images, at the same ranks."""

from __future__ import annotations

import copy
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.compression.decompose import decompose
from multi_dnn_ros.compression.ranks import Choice
from multi_dnn_ros.models.decomposed import SvdPlan, TuckerPlan
from multi_dnn_ros.models.sources import load_network


class Ranks:
    """These plans by layer name."""

    def __init__(self, **plans: TuckerPlan | SvdPlan) -> None:
        self.plans = plans

    def choose(self, layers, progress=lambda: None):
        return {layer.name: Choice(self.plans.get(layer.name), "") for layer in layers if not layer.kept}


def images_of(channels: int, side: int = 12, count: int = 24, seed: int = 0) -> list[tuple[torch.Tensor]]:
    """Images whose channels are nearly combinations of a few, and with means, as behind a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    mixture = torch.randn(channels, max(1, channels // 4), generator=generator)
    few = torch.randn(count, mixture.shape[1], side, side, generator=generator)
    noise = 0.1 * torch.randn(count, channels, side, side, generator=generator)
    images = torch.relu(torch.einsum("cf,nfhw->nchw", mixture, few) + noise)
    return [(part,) for part in images.split(8)]


def output_error(original: nn.Module, network: nn.Module, images: list[tuple[torch.Tensor]]) -> float:
    """sqrt(E ||y - y'||^2 / E ||y without bias||^2) of networks with one layer."""
    bias = original[0].bias
    with torch.no_grad():
        x = torch.cat([image for (image,) in images])
        y = original(x)
        plain = y - (0 if bias is None else bias.reshape(-1, *[1] * (y.dim() - 2)))
        return float((y - network(x)).norm() / plain.norm())


@settings(max_examples=25)
@given(
    groups=st.integers(1, 2), stride=st.integers(1, 2), mode=st.sampled_from(["zeros", "reflect"]), bias=st.booleans(),
    ranks=st.sampled_from([(4, 6), (None, 5), (3, None)]), same=st.booleans(),
)  # fmt: skip
def test_the_error_of_the_output_is_smaller_and_as_reported(
    groups: int, stride: int, mode: str, bias: bool, ranks: tuple[int | None, int | None], same: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(
        12 * groups, 10 * groups, 3, 1 if same else stride, "same" if same else 1, groups=groups, bias=bias,
        padding_mode=mode,
    )  # fmt: skip
    original = nn.Sequential(layer).eval()
    images = images_of(12 * groups)
    plan = TuckerPlan(in_rank=ranks[0], out_rank=ranks[1])
    of_weights, of_outputs = copy.deepcopy(original), copy.deepcopy(original)
    decompose(of_weights, images[0], Ranks(**{"0": plan}))
    (outcome,) = decompose(of_outputs, images[0], Ranks(**{"0": plan}), images=images)
    found = output_error(original, of_outputs, images)
    assert found == pytest.approx(outcome.error, abs=1e-3)
    assert found < 0.9 * output_error(original, of_weights, images)


def write_images(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        cv2.imwrite(str(folder / f"{number}.png"), rng.integers(0, 255, (90, 120, 3), dtype=np.uint8))
    return folder


@pytest.mark.parametrize("kind", ["road", "folder"])
def test_the_command_uses_images(kind: str, tmp_path: Path) -> None:
    data = "road" if kind == "road" else str(write_images(tmp_path / "frames", 8))
    out = tmp_path / "lane.safetensors"
    assert main(["decompose", "builtin:lane", "--output", str(out), "--data", data]) == 0
    description = load_network(str(out)).description
    assert description.provenance["norm"] == "outputs"
    assert description.provenance["images"]["count"] >= 8
    assert description.plan


def test_data_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = write_images(tmp_path / "damaged", 8)
    (damaged / "0.png").write_bytes(b"no image")
    out = tmp_path / "lane.safetensors"
    for data, text in (
        (str(tmp_path / "nowhere"), f"'{tmp_path / 'nowhere'}': there is no such folder"),
        (str(write_images(tmp_path / "few", 3)), "3 image(s)"),
        (str(damaged), f"{damaged / '0.png'}: not a readable image"),
        ("sofas:x", "kind 'sofas'; allowed: "),
        (f"lanes:{tmp_path}", str(tmp_path)),
    ):
        assert main(["decompose", "builtin:lane", "--output", str(out), "--data", data]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert line.startswith("multi-dnn decompose: error: ")
        assert text in line
    assert not out.exists()
