"""``python -m multi_dnn_ros.training curve``: points that are computed once, and their evaluation."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models.regnet import ResBottleneckBlock
from torchvision.models.resnet import BasicBlock, Bottleneck

from multi_dnn_ros.compression.layers import Layer, list_layers
from multi_dnn_ros.compression.ranks import Rounding
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training.__main__ import main
from multi_dnn_ros.training.curve import largest_cut, policy_for, reinitialize

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.usefixtures("narrow")
def test_points_are_added_and_never_computed_twice(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curve.json"
    command = ["curve", "torchvision:squeezenet1_1", "--data", f"classes:{colours}", "--num-classes", "2",
               "--size", "32", "--macs-size", "64", "--epochs", "1", "--retrain-epochs", "1", "--batch-size", "8",
               "--folder", str(tmp_path / "nets"), "--out", str(out), "--device", "cpu"]  # fmt: skip
    assert main([*command, "--policies", "ratio", "--cuts", "0.2"]) == 0
    first = json.loads(out.read_text())
    assert first["original"]["epochs"] == 1
    assert main([*command, "--policies", "ratio", "budget", "--cuts", "0.2", "0.99"]) == 0
    content = json.loads(out.read_text())
    assert content["points"][0] == first["points"][0]
    assert [(row["policy"], row["asked_cut"]) for row in content["points"]] == [
        ("ratio", 0.2), ("budget", 0.2), ("ratio", 0.99), ("budget", 0.99)
    ]  # fmt: skip
    for row in content["points"][:2]:
        assert 0.2 <= row["macs_cut"] < 0.35
        assert 0.0 <= row["scores"]["top1"] <= 1.0
    assert all("cut" in row["error"] for row in content["points"][2:])
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert main(["curves", str(out), str(out), "--out", str(tmp_path / "both.png")]) == 0
    assert (tmp_path / "both.png").stat().st_size > out.with_suffix(".png").stat().st_size
    assert main([*command[:2], *command[2:], "--policies", "ratio", "--cuts", "0.2", "--retrain-lr", "1"]) == 1
    assert "other data or settings" in capsys.readouterr().err
    assert json.loads(out.read_text()) == content


@pytest.mark.long  # convolutions above; fully connected layers in test/compression/test_tucker.py
def test_fully_connected_layers_if_requested(colours: Path, tmp_path: Path) -> None:
    """MobileNetV3's MACs are in 1x1 convolutions, which are kept, and, for small images, in a layer of 960 by 1280."""
    out = tmp_path / "curve.json"
    assert main(["curve", "torchvision:mobilenet_v3_large", "--data", f"classes:{colours}", "--num-classes", "2",
                 "--size", "32", "--macs-size", "32", "--epochs", "1", "--retrain-epochs", "1", "--batch-size", "8",
                 "--policies", "ratio", "--cuts", "0.1", "--linear", "--folder", str(tmp_path / "nets"),
                 "--out", str(out), "--device", "cpu"]) == 0  # fmt: skip
    content = json.loads(out.read_text())
    (point,) = content["points"]
    assert 0.1 <= point["macs_cut"] < 0.2
    assert point["parameters"] < content["original"]["parameters"] - 300_000


@pytest.mark.usefixtures("narrow")
def test_an_original_of_another_size_or_data_is_no_baseline(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(size: str, folder: Path, out: str) -> list[str]:
        return ["curve", "torchvision:squeezenet1_1", "--data", f"classes:{folder}", "--num-classes", "2",
                "--size", size, "--macs-size", "64", "--epochs", "1", "--retrain-epochs", "1", "--batch-size", "8",
                "--policies", "ratio", "--cuts", "0.9999", "--folder", str(tmp_path / "nets"),
                "--out", str(tmp_path / out), "--device", "cpu"]  # fmt: skip

    assert main(command("32", colours, "first.json")) == 0
    assert main(command("48", colours, "second.json")) == 1
    assert "of 2 classes at 32x32, trained on classes; required: torchvision:" in capsys.readouterr().err
    other = tmp_path / "other"
    for part in ("train", "val"):
        shutil.copytree(colours / part / "green", other / part / "lime")
        shutil.copytree(colours / part / "red", other / part / "rose")
    assert main(command("32", other, "second.json")) == 1
    assert "squeezenet1_1.safetensors: holds" in capsys.readouterr().err
    assert not (tmp_path / "second.json").exists()


@pytest.mark.parametrize("content", ['{"points": ', "[1]", '{"points": []}', b"\x89PNG\r\n\x1a\n"])
def test_another_file_is_not_taken_for_points(
    content: str | bytes, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    command = ["curve", "torchvision:squeezenet1_1", "--data", f"classes:{colours}", "--folder", str(tmp_path)]
    for arguments in ([*command, "--out", str(file)], ["curves", str(file), "--out", str(tmp_path / "x.png")]):
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith((f"{file}: not ", f"{file}: holds list, not an object"))


def test_the_plot_does_not_overwrite_the_points(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curve.png"
    assert main(["curve", "torchvision:squeezenet1_1", "--data", f"classes:{colours}", "--num-classes", "2", "--size",
                 "32", "--macs-size", "64", "--epochs", "1", "--batch-size", "8", "--cuts", "0.9999", "--device", "cpu",
                 "--folder", str(tmp_path), "--out", str(out)]) == 1  # fmt: skip
    assert f"{out}: is the name of the plot" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [(["--size", "8"], "8x8"), (["--size", "32", "--small-size", "7", "--small-epochs", "1"], "7x7")],
)
def test_images_too_small_for_the_network_are_reported_before_training(
    sizes: list[str], wrong: str, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curve", "torchvision:squeezenet1_1", "--data", f"classes:{colours}", "--num-classes", "2", *sizes,
                 "--epochs", "2", "--folder", str(tmp_path), "--out", str(tmp_path / "x.json"),
                 "--device", "cpu"]) == 1  # fmt: skip
    assert f"squeezenet1_1 cannot be run on images of {wrong}: " in capsys.readouterr().err


@pytest.mark.parametrize("cut", ["90", "1", "0", "-0.5", "nan", "most"])
def test_a_cut_that_is_no_share_is_refused(cut: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["curve", "torchvision:vgg16", "--data", "classes:x", "--folder", str(tmp_path), "--out", "x.json",
              f"--cuts={cut}"])  # fmt: skip
    assert ended.value.code == 2
    assert f"'{cut}' is not a share of the MACs between 0 and 1" in capsys.readouterr().err


@pytest.mark.usefixtures("narrow")
def test_a_point_with_unreadable_data_is_computed_in_the_next_run(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(colours, tmp_path / "colours")
    out = tmp_path / "curve.json"
    command = ["curve", "torchvision:squeezenet1_1", "--data", f"classes:{folder}", "--num-classes", "2",
               "--size", "32", "--macs-size", "64", "--epochs", "1", "--retrain-epochs", "1", "--batch-size", "8",
               "--policies", "ratio", "--folder", str(tmp_path / "nets"), "--out", str(out), "--device",
               "cpu"]  # fmt: skip
    assert main([*command, "--cuts", "0.9999"]) == 0
    image = folder / "val" / "red" / "3.png"
    whole = image.read_bytes()
    image.write_bytes(whole[:50])
    assert main([*command, "--cuts", "0.2"]) == 1
    assert f"{image}: not a readable image" in capsys.readouterr().err
    image.write_bytes(whole)
    assert main([*command, "--cuts", "0.2"]) == 0
    assert "scores" in json.loads(out.read_text())["points"][-1]


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    """Layers that all tests share, so that their singular values are computed once."""
    return list_layers(load_network("builtin:object").module, (torch.zeros(1, 3, 288, 384),))


@pytest.mark.parametrize("name", ["ratio", "energy", "budget"])
def test_each_policy_reaches_the_cut_and_not_much_more(name: str, layers: list[Layer]) -> None:
    total = sum(layer.macs() for layer in layers)
    policy, _ = policy_for(name, layers, total, 0.4, Rounding(4, 4))
    choices = policy.choose(layers)
    saved = sum(layer.macs() - layer.macs(choices[layer.name].plan) for layer in layers if not layer.kept)
    assert 0.4 <= saved / total < 0.45


@pytest.mark.parametrize(
    "builder",
    [
        "resnet18",
        "resnet50",
        "regnet_y_400mf",
        "squeezenet1_1",
        pytest.param("inception_v3", marks=pytest.mark.long),  # large, and plain as squeezenet1_1
    ],
)
def test_initial_signals_have_the_same_size_in_all_layers(builder: str) -> None:
    """Residual branches start at zero, so that each block returns its input; the seed determines the weights."""
    network = load_network(f"torchvision:{builder}", weights="random", num_classes=10).module
    networks = [network, copy.deepcopy(network)]
    for layer in networks[1].modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    for network in networks:
        reinitialize(network, seed=3)
    torch.testing.assert_close(dict(networks[0].named_parameters()), dict(networks[1].named_parameters()))
    network = networks[0].train()
    image = torch.randn(4, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float(network(image).std()) < 3.0
        for block in network.modules():
            if isinstance(block, BasicBlock | Bottleneck | ResBottleneckBlock) and block_is_plain(block):
                channels = next(part for part in block.modules() if isinstance(part, torch.nn.Conv2d)).in_channels
                values = torch.rand(2, channels, 8, 8)
                torch.testing.assert_close(block(values), values)


def block_is_plain(block: torch.nn.Module) -> bool:
    return getattr(block, "downsample", None) is None and getattr(block, "proj", None) is None


def test_the_largest_cut_within_a_point() -> None:
    def row(cut: float, top1: float) -> dict[str, object]:
        return {"policy": "ratio", "parameter": "", "macs_cut": cut, "scores": {"top1": top1}}

    content = {"original": {"scores": {"top1": 0.940}}, "points": [row(0.5, 0.941), row(0.7, 0.931), row(0.8, 0.929)]}
    best = largest_cut(content)
    assert best is not None
    assert best["macs_cut"] == 0.7
    assert largest_cut({**content, "points": [row(0.5, 0.9), {"policy": "energy", "error": "x"}]}) is None
