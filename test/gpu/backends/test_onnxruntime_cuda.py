"""ONNX Runtime's CUDA and TensorRT providers. CPU twins: test/backends/test_onnx_providers.py, test_onnxruntime.py.

Needs onnxruntime-gpu in place of onnxruntime, and its libraries; without them the tests skip themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu_stages import EXAMPLE, GPU, NETWORKS, Warnings, on_gpu, residual, through

from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.captured_network import Captured
from multi_dnn_ros.backends.onnx_providers import COMPILED, available
from multi_dnn_ros.backends.onnxruntime_gpu import BoundStage
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend

PROVIDERS = [
    pytest.param(name, marks=pytest.mark.skipif(name not in available(), reason=f"onnxruntime has no {name} provider"))
    for name in ("cuda", "tensorrt")
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPILED, "_folder", tmp_path / "engines")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_every_job_is_a_captured_session_and_agrees_with_the_cpu(provider: str, precision: str) -> None:
    module, inputs = residual(), noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = (module(*inputs),)
    with Warnings() as warnings:
        backend = choose_backend("onnxruntime", GPU, precision, dnn="a", providers=[provider], required=True)
        stages = backend.prepare(cut_module(module, EXAMPLE, 3, fold_batch_norm=True), EXAMPLE, GPU)
    assert warnings == []
    for stage in stages:
        assert isinstance(stage, Captured)
        assert isinstance(stage.stage, BoundStage)
    tolerance = len(stages) * PRECISIONS[precision].tolerance(GPU)
    check_agreement(through(stages, on_gpu(inputs)), expected, tolerance)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_on_any_stream(provider: str, network: str) -> None:
    """Launched on another stream than the one of the capture, right after the input was written there."""
    module, inputs = NETWORKS[network](), noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = (module(*inputs),)
    backend = choose_backend("onnxruntime", GPU, dnn="a", providers=[provider], required=True)
    stages = backend.prepare(cut_module(module, EXAMPLE, 2, fold_batch_norm=True), EXAMPLE, GPU)
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(GPU)):
        for _ in range(5):
            torch.cuda._sleep(10_000_000)
            results = tuple(each.clone() for each in through(stages, on_gpu(inputs)))
            torch.cuda.current_stream().synchronize()
            check_agreement(results, expected, len(stages) * 1e-2)


@pytest.mark.parametrize("provider", PROVIDERS[1:])
def test_engines_are_read_again(provider: str) -> None:
    def prepare() -> None:
        backend = choose_backend("onnxruntime", GPU, dnn="a", providers=[provider], required=True)
        backend.prepare(cut_module(residual(), EXAMPLE, 1, fold_batch_norm=True), EXAMPLE, GPU)

    prepare()
    (entry,) = COMPILED.folder.iterdir()
    assert entry.machine["gpu"] == torch.cuda.get_device_name(GPU)
    engines = {file: file.stat().st_mtime_ns for file in entry.glob("*.engine")}
    assert engines
    prepare()
    assert {file: file.stat().st_mtime_ns for file in entry.glob("*.engine")} == engines
    assert len([*COMPILED.folder.iterdir()]) == 1


def test_what_is_not_there_leaves_captured_pytorch() -> None:
    """Also with the CPU-only onnxruntime: the only part that needs no other wheel."""
    module, inputs = residual(), noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = (module(*inputs),)
    with Warnings() as warnings:
        backend = choose_backend("onnxruntime", GPU, "fp32", dnn="a", providers=["tensorrt"])
        stages = backend.prepare(cut_module(module, EXAMPLE, 2, fold_batch_norm=True), EXAMPLE, GPU)
    assert "a runs as PyTorch on cuda:0, because no execution provider of ONNX Runtime runs it" in warnings
    assert all(isinstance(stage, Captured) for stage in stages)
    check_agreement(through(stages, on_gpu(inputs)), expected, 1e-3)
