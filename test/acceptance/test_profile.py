"""``multi-dnn profile`` as a user sees it: the command, its files and its exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import multi_dnn
from torch import nn

CPU = ("--device", "cpu", "--backend", "eager")


def detector(path: Path, channels: int) -> Path:
    """An exported network of three layers with the outputs of decoder yolo, for the role object."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, 6, 1), nn.Flatten(2))
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 32, 32),)), path)
    return path


def succeed(*arguments: str | Path, code: int = 0) -> str:
    """What the command prints to stdout."""
    done = multi_dnn("profile", *arguments)
    assert done.returncode == code, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done.stdout


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_layers_of_a_network(tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = succeed(
        "layers", "builtin:lane", *CPU, "--jobs", "3", "--cut", "measured", "--repeats", "3", "--output", out
    )
    assert "sum of the layers" in printed
    assert sorted(path.name for path in out.iterdir()) == ["layers.csv", "profile.json", "roofline.png"]
    profile: dict[str, Any] = json.loads((out / "profile.json").read_text())
    layers = profile["layers"]
    assert len(profile["jobs_ms"]) == 3
    assert [row["layer"] for row in rows_of(out / "layers.csv")] == [layer["layer"] for layer in layers]
    assert {layer["job"] for layer in layers} == {0, 1, 2}
    assert sum(layer["ms"] for layer in layers) == pytest.approx(profile["sum_of_layers_ms"])
    assert profile["whole_ms"]["p50"] > 0
    for layer in layers:
        assert (layer["macs"] > 0) == ("convolution" in layer["kind"] or layer["kind"] == "linear")


def test_from_layer_times_under_load_to_whether_a_dnn_fits(tmp_path: Path) -> None:
    """No command refuses what an earlier one has written."""
    models = [detector(tmp_path / f"small{channels}.pt2", channels) for channels in (4, 8)]
    table, learnt = tmp_path / "samples.csv", tmp_path / "learnt"
    succeed("contention", *models, "--output", table, *CPU, "--repeats", "3", "--levels", "0,1")
    assert {(row["load_kind"], row["load_level"]) for row in rows_of(table)} == {
        ("none", "0"),
        *((kind, "1") for kind in ("compute", "memory", "dnn")),
    }
    assert len(rows_of(table)) == 2 * 3 * 4
    printed = succeed("learn", table, "--output", learnt)
    assert "| networks, under load" in printed
    errors = json.loads((learnt / "learnt.json").read_text())["median_absolute_errors"]
    assert {"linear", "forest"} <= set(errors[0]["layer"])
    predictor = ("--predictor", learnt / "predictor.json")

    (tmp_path / "robot.yaml").write_text(
        "/**:\n  ros__parameters:\n    device: cpu\n    workers: 2\n    dnns: [object]\n    dnn:\n"
        f"      object: {{model: {models[1]}, decoder: yolo, labels: [car, truck], backend: eager, jobs: 1}}\n"
    )
    fit = ("fit", "--params-file", tmp_path / "robot.yaml")
    printed = succeed(*fit, "--rate", "front=1", *predictor)
    assert "object" in printed
    assert "measured, because" not in printed


def test_layers_of_a_distributed_training_step(tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = succeed(
        "training", "torchvision:squeezenet1_1", "--device", "cpu", "--processes", "2", "--size", "32x32", "--batch",
        "2", "--repeats", "2", "--bucket-mib", "0.001", "--output", out,
    )  # fmt: skip
    assert "link between 2 processes" in printed
    content: dict[str, Any] = json.loads((out / "training.json").read_text())
    layers = content["layers"]
    assert [row["layer"] for row in rows_of(out / "layers.csv")] == [layer["layer"] for layer in layers]
    convolutions = [layer for layer in layers if layer["kind"] == "Conv2d"]
    assert len(convolutions) == 26
    for layer in convolutions:
        assert min(layer["forward_ms"], layer["backward_ms"], layer["all_reduce_ms"]) > 0.0
        assert layer["backward_flops"] == (1 if layer is convolutions[0] else 2) * layer["forward_flops"] > 0
        assert layer["gradient_bytes"] == 4 * layer["parameters"]
    assert content["processes"] == 2
    assert content["messages"] > 20
    total = sum(layer["forward_ms"] + layer["backward_ms"] for layer in layers)
    # Medians of parts and of the whole differ a little.
    assert content["sum_ms"] == pytest.approx(total + content["optimizer_ms"] + content["exposed_ms"], rel=0.5)
