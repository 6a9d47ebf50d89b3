"""`multi-dnn devices`: what this machine has, what works on it, and why the rest does not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from multi_dnn_ros.backends import cpu_features
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.profiling.devices import find_devices


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch sees two GPUs: one older than Ampere, one newer."""
    known = [
        SimpleNamespace(name="Xavier", total_memory=8 << 30, multi_processor_count=8, major=7, minor=2),
        SimpleNamespace(name="H200", total_memory=140 << 30, multi_processor_count=132, major=9, minor=0),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(known))
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)


def test_the_command_shows_this_cpu(without_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "devices.json"
    assert main(["devices", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    (cpu,) = content["devices"]
    assert (cpu["id"], cpu["cores_or_sms"], cpu["memory_bytes"]) == ("cpu", cpu_count(), psutil.virtual_memory().total)
    backends = {backend["name"]: backend for backend in cpu["backends"]}
    assert list(backends) == list(BACKENDS.names())
    assert backends["eager"]["precisions"] == ["auto", "fp32", "bf16"]
    assert backends["eager"]["refused"]["fp16"] == "this backend has no fp16 on cpu"
    assert backends["onnxruntime"]["version"].startswith("onnxruntime ")
    output = capsys.readouterr().out
    for text in (cpu["name"], "cuda_graph: runs on cuda only", f"written to {file}"):
        assert text in output


def test_a_cpu_without_instructions_says_what_it_lacks(
    without_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2\n")
    monkeypatch.setattr(cpu_features, "_CPUINFO", tmp_path / "cpuinfo")
    cpu_features.cpu_flags.cache_clear()
    try:
        (cpu,) = find_devices()
        assert cpu.features == ()
        (onnxruntime,) = (backend for backend in cpu.backends if backend.name == "onnxruntime")
        assert onnxruntime.precisions == ("auto", "fp32")
        assert onnxruntime.refused["int8"].startswith("needs 8-bit dot products")
        assert onnxruntime.refused["bf16"] == "this backend has no bf16 on cpu"
    finally:
        cpu_features.cpu_flags.cache_clear()


def test_a_gpu_says_which_precisions_it_is_too_old_for(two_gpus: None) -> None:
    _, old, new = find_devices()
    assert (old.id, old.name, old.cores_or_sms, old.features) == ("cuda:0", "Xavier", 8, ("compute capability 7.2",))
    captured = {device.id: next(of for of in device.backends if of.name == "cuda_graph") for device in (old, new)}
    assert captured["cuda:0"].refused["bf16"] == "needs compute capability 8.0; this GPU has 7.2"
    assert captured["cuda:1"].refused == {"int8": "this backend has no int8 on cuda"}
    assert next(of for of in new.backends if of.name == "onnxruntime").problem == (
        "has no execution provider for cuda; it has cpu (docs/devices.md)"
    )
