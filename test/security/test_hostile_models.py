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
from onnx import TensorProto, helper
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


def overlapping(path: Path) -> None:
    """Many records that all refer to the same bytes of the file."""
    torch.save({"w": torch.zeros(1 << 16)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        (big,) = (record for record in archive.infolist() if record.file_size == 1 << 18)
        for number in range(100):
            twin = zipfile.ZipInfo(f"{big.filename.rpartition('/')[0]}/{number + 1}")
            twin.header_offset, twin.file_size, twin.compress_size, twin.CRC = (
                *(big.header_offset, big.file_size),
                *(big.compress_size, big.CRC),
            )
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
        archive._didModify = True


def sparse(path: Path) -> None:
    torch.save({"w": torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (4, 4))}, path)


def without_directory(path: Path) -> None:
    """An archive whose list of records is damaged, as by a wrong sector."""
    torch.save({"w": torch.zeros(1)}, path)
    path.write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"XX\x01\x02"))


WEIGHTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "array.pth": (pickled_array, "can run code .* convert it: safetensors"),
    "object.pt": (lambda path: torch.save({"w": Exploit()}, path), "can run code .* convert it: safetensors"),
    "module.pt": (lambda path: torch.save(nn.ReLU(), path), "can run code .* convert it: safetensors"),
    "program.pt": (lambda path: torch.jit.save(torch.jit.script(nn.ReLU()), path), "code; .* convert it: safetensors"),
    "deflated.pth": (deflated, "is compressed"),
    "overlapping.pth": (overlapping, r"claims records of \d+ bytes in a file of"),
    "directory.pth": (without_directory, "cannot be read as weights"),
    "empty_stack.pth": (lambda path: path.write_bytes(b"\x80\x02."), "cannot be read as weights"),
    "sparse.pth": (sparse, "sparse_coo.*allowed: plain dense"),
    "long.safetensors": (lambda path: path.write_bytes(struct.pack("<Q", 2**60) + b"{}"), "header too large"),
    "wide.safetensors": (
        lambda path: path.write_bytes(
            struct.pack("<Q", 73) + b'{"w":{"dtype":"F32","shape":[4294967295,4294967295],"data_offsets":[0,4]}}    '
        ),
        "cannot be read as weights",
    ),
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


def onnx_file(path: Path, *, weight: TensorProto, size: tuple[int, int] = (8, 8)) -> Path:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, *size])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 6, None, None])
    graph = helper.make_graph([helper.make_node("Conv", ["image", "w"], ["out"])], "g", [image], [out], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_onnx_sizes_are_not_believed(tmp_path: Path) -> None:
    lie = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**31, 2**31], raw_data=b"1234")
    with pytest.raises(ModelError, match=r"lie\.onnx: cannot be read as ONNX"):
        load(onnx_file(tmp_path / "lie.onnx", weight=lie))
    weight = helper.make_tensor("w", TensorProto.FLOAT, [6, 3, 3, 3], np.zeros(162))
    with pytest.raises(ModelError, match=r"big\.onnx: takes images of 40000 x 30000 .*; allowed: at most 8192 x 8192"):
        load(onnx_file(tmp_path / "big.onnx", weight=weight, size=(30_000, 40_000)))


def test_a_compressed_exported_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(nn.ReLU(), (torch.zeros(1, 3, 8, 8),)), path)
    with zipfile.ZipFile(path) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    with pytest.raises(ModelError, match=r"m\.pt2: record .* is compressed"):
        load(path)
