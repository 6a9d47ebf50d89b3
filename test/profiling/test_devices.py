"""`multi-dnn devices`: what this machine has, what works on it, and why the rest does not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common import cpu_features
from multi_dnn_ros.common.cpu_features import has_int8_products
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.profiling import devices as module
from multi_dnn_ros.profiling.copies import Link
from multi_dnn_ros.profiling.devices import Device, count_measurements, find_devices, measure_devices


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


def test_the_command_measures_this_cpu(
    without_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = module.measure_devices
    monkeypatch.setattr(module, "measure_devices", lambda found, progress: measure(found, progress, scale=0.25))
    file, threads = tmp_path / "new" / "devices.json", torch.get_num_threads()
    assert main(["devices", "--threads", "1", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["command"]
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert content["cpu_threads"] == 1
    assert content["links"] == []
    (cpu,) = content["devices"]
    assert (cpu["id"], cpu["cores"], cpu["memory_bytes"]) == ("cpu", cpu_count(), psutil.virtual_memory().total)
    assert cpu["bytes_per_s"] > 1e8
    assert cpu["from_host_bytes_per_s"] is None
    expected = {"fp32", "bf16", "int8"} if has_int8_products() else {"fp32", "bf16"}
    assert set(cpu["ops_per_s"]) == expected
    assert all(math.isfinite(rate) and rate > 1e6 for rate in cpu["ops_per_s"].values())
    assert cpu["not_measured"] == {}
    backends = cpu["backends"]
    assert list(backends) == list(BACKENDS.names())
    assert backends["eager"]["precisions"] == ["auto", "fp32", "bf16"]
    assert backends["eager"]["refused"]["fp16"] == "this backend has no fp16 on cpu"
    assert backends["cuda_graph"]["problem"] == "runs on cuda only"
    assert backends["onnxruntime"]["version"].startswith("onnxruntime ")
    output = capsys.readouterr().out
    for text in (cpu["name"], "TFLOP/s", "cuda_graph: runs on cuda only", f"written to {file}"):
        assert text in output
    assert torch.get_num_threads() == threads


def test_a_cpu_without_instructions_says_what_it_lacks(
    without_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2\n")
    monkeypatch.setattr(cpu_features, "_CPUINFO", tmp_path / "cpuinfo")
    cpu_features.cpu_flags.cache_clear()
    try:
        (cpu,) = find_devices()
        assert cpu.features == ()
        assert cpu.precisions == ("fp32", "bf16")
        (onnxruntime,) = (backend for backend in cpu.backends if backend.name == "onnxruntime")
        assert onnxruntime.precisions == ("auto", "fp32")
        assert onnxruntime.refused["int8"].startswith("needs 8-bit dot products")
        assert onnxruntime.refused["bf16"] == "this backend has no bf16 on cpu"
    finally:
        cpu_features.cpu_flags.cache_clear()


def test_a_gpu_says_which_precisions_it_is_too_old_for(two_gpus: None) -> None:
    _, old, new = find_devices()
    assert (old.id, old.name, old.cores_or_sms, old.features) == ("cuda:0", "Xavier", 8, ("compute capability 7.2",))
    assert old.precisions == ("fp32", "fp16")
    assert new.precisions == ("fp32", "tf32", "fp16", "bf16")
    captured = {device.id: next(of for of in device.backends if of.name == "cuda_graph") for device in (old, new)}
    assert captured["cuda:0"].refused["bf16"] == "needs compute capability 8.0; this GPU has 7.2"
    assert captured["cuda:1"].refused == {"int8": "this backend has no int8 on cuda"}
    assert next(of for of in new.backends if of.name == "onnxruntime").problem == (
        "has no execution provider for cuda; it has cpu (docs/devices.md)"
    )


def test_memory_that_does_not_suffice_is_a_reason_and_the_rest_is_measured(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fake measurements, which show what is measured, in which order, and what remains after a failure."""
    measured: list[tuple[str, str]] = []

    def limits(target, scale: float) -> SimpleNamespace:
        measured.append((str(target.device), target.precision))
        if target.device.index == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return SimpleNamespace(flops_per_s=1e12 * len(measured), bytes_per_s=2e9)

    monkeypatch.setattr(module, "measure_limits", limits)
    monkeypatch.setattr(module, "measure_host_copies", lambda device: None if device.index == 0 else (3e9, 4e9))
    monkeypatch.setattr(
        module, "measure_link", lambda source, target: Link(f"cuda:{source}", f"cuda:{target}", True, 5e9)
    )
    gpus = find_devices()[1:]
    shown: list[tuple[int, int, str]] = []
    (old, new), found = measure_devices(gpus, lambda *step: shown.append(step))
    assert measured == [("cuda:0", "fp32"), ("cuda:0", "fp16"), *(("cuda:1", name) for name in new.precisions)]
    assert old.not_measured == {"fp32": "not enough free memory", "fp16": "not enough free memory"}
    assert (old.ops_per_s, old.bytes_per_s, old.from_host_bytes_per_s) == ({}, None, None)
    assert new.ops_per_s == {"fp32": 3e12, "tf32": 4e12, "fp16": 5e12, "bf16": 6e12}
    assert (new.bytes_per_s, new.from_host_bytes_per_s, new.to_host_bytes_per_s) == (2e9, 3e9, 4e9)
    assert [(link.source, link.target) for link in found] == [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")]
    assert [done for done, _, _ in shown] == list(range(count_measurements(gpus) + 1))
    assert {total for _, total, _ in shown} == {count_measurements(gpus)}


def test_the_table_has_links_and_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Device("cuda:0", "a GPU", 2 << 30, 16, (), (), {"fp16": 1.5e14}, {"fp32": "not enough free memory"}, 4e12)
    found = [Link("cuda:0", "cuda:1", False, None), Link("cuda:1", "cuda:0", True, 3.65e11)]
    monkeypatch.setattr(module, "find_devices", lambda: [gpu])
    monkeypatch.setattr(module, "measure_devices", lambda devices, progress: (devices, found))
    monkeypatch.setattr("multi_dnn_ros.profiling.limits.busy_warning", lambda device: f"{device} is busy")
    file = tmp_path / "devices.json"
    assert main(["devices", "--json", str(file)]) == 0
    output = capsys.readouterr().out
    for text in ("fp32, not measured: not enough free memory", "warning: cuda:0 is busy", "a GPU", " 150 ", " 365 "):
        assert text in output
    content = json.loads(file.read_text())
    assert content["links"][1]["bytes_per_s"] == 3.65e11
    assert content["devices"][0]["sms"] == 16
