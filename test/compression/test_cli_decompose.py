"""`multi-dnn decompose`: from a model's name to a file for the node and a report; errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.settings.schema import DnnConfig


def test_from_a_name_to_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report = tmp_path / "lane.safetensors", tmp_path / "report"
    arguments = ["decompose", "builtin:lane", "--output", str(out), "--ranks", "budget", "--macs-cut", "0.4"]
    assert main([*arguments, "--report", str(report)]) == 0
    assert "MACs" in capsys.readouterr().out
    dnn = load_dnn("lane", DnnConfig(role="lane", model=str(out)))
    assert dnn.labels == ("lane",)
    description = load_network(str(out)).description
    content = json.loads((report / "report.json").read_text())
    assert content["macs"]["cut"] >= 0.4
    assert {layer["name"] for layer in content["layers"] if layer["fate"] == "decomposed"} == set(description.plan)
    assert all(layer["reason"] for layer in content["layers"] if layer["fate"] == "kept")
    assert description.provenance["source"]["weights_sha256"]
    assert description.provenance["ranks"]["macs_cut"] == 0.4

    assert main(["decompose", str(out), "--output", str(tmp_path / "again.safetensors")]) == 2
    assert "is already decomposed" in capsys.readouterr().err


def test_measured(tmp_path: Path) -> None:
    """With the real clock: which layers are decomposed depends on the machine, but the file is always correct."""
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 24, 24),)), tmp_path / "in.pt2")
    out, report = tmp_path / "out.pt2", tmp_path / "report"
    how = ["--ranks", "measured", "--ratio", "0.25", "--device", "cpu", "--backend", "eager", "--report", str(report)]
    assert main(["decompose", str(tmp_path / "in.pt2"), "--output", str(out), *how]) == 0
    content = json.loads((report / "report.json").read_text())
    assert content["target"].split("; ")[1:3] == ["auto", "eager"]
    assert all(entry["decomposed_ms"] < entry["original_ms"] for entry in content["latency_ms"])
    source = load_network(str(out))
    loaded, description = source.module, source.description
    assert len(content["latency_ms"]) == (2 if description.plan else 0)
    assert loaded(torch.zeros(1, 3, 24, 24)).shape == (1, 64, 20, 20)


OUT = ["--output", "x.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["builtin:sofa", *OUT], 1, "is 'builtin:sofa'; allowed: builtin:"),
        (["builtin:lane", "--output", "x.pt2"], 2, "expected a .safetensors file for a network made from builtin:lane"),
        (["builtin:lane", *OUT, "--size", "64x64"], 2, "takes 320x192 only"),
        (["builtin:lane", *OUT, "--alignment", "5000"], 1, "alignment is 5000"),
        (
            ["builtin:lane", *OUT, "--ranks", "budget", "--macs-cut", "0.99"],
            1,
            "with alignment 8 and floor 8: up",
        ),
        (["builtin:lane", *OUT, "--ratio", "1"], 1, "no layer of LaneNet is worth decomposing"),
        (["builtin:lane", *OUT, "--ranks", "measured", "--backend", "abacus"], 2, "'abacus'; allowed: auto"),
        (["builtin:lane", *OUT, "--ranks", "measured", "--device", "gpu"], 1, "device is 'gpu'; allowed"),
        (["torchvision:squeezenet1_1", *OUT], 1, "weights is 'default'; allowed: IMAGENET1K_V1"),
        (["nowhere.onnx", "--output", "x.pt2"], 1, "MODEL is 'nowhere.onnx': there is no such file"),
    ],
)
def test_failure_is_one_line_and_writes_nothing(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["decompose", *arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.splitlines()[-1].startswith("multi-dnn decompose: error: ")
    assert list(tmp_path.iterdir()) == []
