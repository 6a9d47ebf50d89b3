"""Weights and models made to harm: nothing in them is run, no other file is read, claimed sizes are not allocated."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.weights import read_state_dict
from multi_dnn_ros.settings.schema import DnnConfig

BUILDER = "ssdlite320_mobilenet_v3_large"


class Exploit:
    def __reduce__(self) -> tuple:
        return (print, ("code from a file ran",))


def load(path: Path) -> None:
    load_dnn("x", DnnConfig(role="object", model=str(path), decoder="yolo", labels=["a", "b"]))


def pickled_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([Exploit()], dtype=object), allow_pickle=True)


def deflated(path: Path) -> None:
    """A file of tensors whose storage inflates to 64 MiB."""
    torch.save({"w": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records.items():
            archive.writestr(name, bytes(1 << 26) if name.endswith("data/0") else data)


WEIGHTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "array.pth": (pickled_array, "can run code .* convert it: safetensors"),
    "object.pt": (lambda path: torch.save({"w": Exploit()}, path), "can run code .* convert it: safetensors"),
    "module.pt": (lambda path: torch.save(nn.ReLU(), path), "can run code .* convert it: safetensors"),
    "program.pt": (lambda path: torch.jit.save(torch.jit.script(nn.ReLU()), path), "code; .* convert it: safetensors"),
    "deflated.pth": (deflated, "is compressed"),
    "long.safetensors": (lambda path: path.write_bytes(struct.pack("<Q", 2**60) + b"{}"), "header too large"),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.filterwarnings("ignore")
def test_hostile_weights_are_refused_by_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = WEIGHTS[name]
    path = tmp_path / name
    make(path)
    with pytest.raises(ModelError, match=rf"{name}: .*{words}"):
        read_state_dict(path)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pkl", ".ckpt", ".joblib"])
def test_formats_that_are_pickles_are_not_even_opened(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    pickled_array(path)
    with pytest.raises(ModelError, match=rf"w\{suffix}'; allowed: .*safetensors"):
        load_dnn("x", DnnConfig(role="object", model=f"torchvision:{BUILDER}", weights=str(path)))
    with pytest.raises(ModelError, match=rf"w\{suffix}'; allowed: .*\.onnx"):
        load(path)


def test_a_pickle_in_torchvision_s_cache_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchvision checks the hash of what it downloads, not of a file that is already there."""
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.save({"w": Exploit()}, cache / models.get_model_weights(BUILDER)["COCO_V1"].url.rpartition("/")[2])
    with pytest.raises(ModelError, match=r"dnn\.x\.weights is 'COCO_V1', which cannot be loaded: .*give a file"):
        load_dnn("x", DnnConfig(role="object", model=f"torchvision:{BUILDER}", weights="COCO_V1"))
    assert "ran" not in capsys.readouterr().out
