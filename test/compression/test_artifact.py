"""Written artifacts load unchanged, also in the node; any other file is an error that names file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from multi_dnn_ros.compression.decompose import decompose, plan_of
from multi_dnn_ros.compression.graph_layers import with_layers
from multi_dnn_ros.compression.ranks import Ratio
from multi_dnn_ros.models.artifact import Description, save_artifact
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.settings.schema import DnnConfig


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """The package's object DNN, decomposed, and the module that was written."""
    source = load_network("builtin:object")
    outcomes = decompose(source.module, (torch.zeros(1, 3, 288, 384),), Ratio(0.5))
    path = tmp_path_factory.mktemp("artifact") / "object.safetensors"
    description = Description(
        model="builtin:object", input_size=source.size, labels=source.labels, plan=plan_of(outcomes),
        provenance={"seed": 3},
    )  # fmt: skip
    save_artifact(path, source.module, description)
    return path, source.module


def load_object(path: Path) -> Any:
    return load_dnn("object", DnnConfig(role="object", model=str(path)))


def test_the_node_loads_what_was_written(made: tuple[Path, nn.Module]) -> None:
    path, module = made
    source = load_network(str(path))
    image = torch.rand(1, 3, 288, 384)
    with torch.inference_mode():
        assert torch.equal(module(image), source.module(image))
    assert (source.description.provenance, load_object(path).labels) == ({"seed": 3}, ("car", "truck"))


class Lanes(nn.Module):
    """Has a layer that is used twice, with string padding, one with groups, and one followed by a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.twice = nn.Conv2d(32, 32, 3, padding="same")
        self.grouped = nn.Conv2d(32, 64, (3, 5), padding=(1, 2), groups=2)
        self.head = nn.Conv2d(64, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.twice(self.stem(image).relu()))
        return nn.functional.interpolate(self.head(self.grouped(x)), scale_factor=2.0)


def test_exported_programs(tmp_path: Path) -> None:
    """.pt2 in, .pt2 out: layers are found in the graph, the file says what was done and loads as any .pt2."""
    original, image = Lanes().eval(), torch.rand(1, 3, 48, 64)

    def check_equal(first: nn.Module, second: nn.Module) -> None:
        with torch.inference_mode():
            torch.testing.assert_close(first(image), second(image), rtol=1e-4, atol=1e-4)

    torch.export.save(torch.export.export(original, (image,)), tmp_path / "in.pt2")
    network = with_layers(load_network(str(tmp_path / "in.pt2")).module)
    check_equal(original, network)
    assert {name for name, _ in network.named_parameters()} == {name for name, _ in original.named_parameters()}
    plan = plan_of(decompose(network, (image,), Ratio(0.5)))
    assert plan == plan_of(decompose(original, (image,), Ratio(0.5)))
    check_equal(original, network)  # both decomposed
    out = tmp_path / "out.pt2"
    save_artifact(out, network, Description(model="in.pt2", input_size=(64, 48), labels=("line",), plan=plan))
    source = load_network(str(out))
    module, description = source.module, source.description
    assert description.plan == plan
    check_equal(network, module)
    assert load_dnn("x", DnnConfig(role="lane", model=str(out), decoder="lane")).labels == ("line",)
    assert load_network(str(tmp_path / "in.pt2")).description is None


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"plan": None}, r"header is .*Invalid JSON"),
        ({"plan": {"tower.0": {"kind": "tucker2", "in_rank": -1, "out_rank": 3}}}, r"plan\.tower\.0.*in_rank is '-1'"),
        ({"plan": {"sofa": {"kind": "svd", "rank": 3}}}, r"names the layer 'sofa', which DetectorNet does not have"),
        ({"plan": {"tower.0": {"kind": "tucker2", "in_rank": 900, "out_rank": 3}}}, r"'tower\.0': in_rank 900: .*48"),
        ({"model": "/etc/passwd"}, r"header field model is '/etc/passwd'; allowed: builtin"),
        ({"input_size": [64, 64]}, r"header field input_size is \[64, 64\]; expected \[384, 288\]"),
        ({"preprocess": {"std": [0, 1, 1]}}, r"header field preprocess\.std\.0 is '0'"),
    ],
)
def test_wrong_headers(made: tuple[Path, nn.Module], tmp_path: Path, header: dict[str, Any], message: str) -> None:
    """None: text that is no JSON."""
    with safe_open(made[0], "pt") as file:
        fields = dict(file.metadata())
    fields |= {key: "{" if value is None else json.dumps(value) for key, value in header.items()}
    save_file(load_file(made[0]), tmp_path / "object.safetensors", metadata=fields)
    with pytest.raises(ModelError, match=rf"object\.safetensors.*{message}"):
        load_object(tmp_path / "object.safetensors")


def test_a_failed_write_leaves_the_last_good_file(
    made: tuple[Path, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "object.safetensors"
    source = load_network(str(made[0]))
    broken, description = source.module, source.description
    save_artifact(path, made[1], description)
    assert path.stat().st_mode & 0o777 == 0o644  # the node may run as another user
    before = path.read_bytes()
    next(broken.parameters()).data.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"not written, because the weights .* are not finite"):
        save_artifact(path, broken, description)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"object\.safetensors cannot be written: .*No space left"):
        save_artifact(path, made[1], description)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
