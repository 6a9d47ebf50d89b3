"""Precision and Inductor on a GPU. CPU twins: test/backends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from gpu_stages import EXAMPLE, GPU, needs, network, on_gpu, through

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement, probe
from multi_dnn_ros.backends.cuda_graph import Captured
from multi_dnn_ros.backends.precision import PRECISIONS, float32_products
from multi_dnn_ros.choices import choose_backend
from multi_dnn_ros.models.cut import cut

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("precision", ["auto", "fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
def test_every_precision_agrees_with_the_cpu_and_every_job_is_captured(
    backend: str, precision: str, caplog: pytest.LogCaptureFixture
):
    needs(precision, backend)
    module, inputs = network(), probe(EXAMPLE)
    with torch.inference_mode():  # before the stages, which share the weights, are moved
        expected = (module(*inputs),)
    settings = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    lines: list[str] = []
    prepared = choose_backend(backend, GPU, precision, dnn="a", progress=lines.append).prepare(
        cut(module, EXAMPLE, 4, fold_batch_norm=True), EXAMPLE, GPU
    )
    assert settings == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    assert not [r.getMessage() for r in caplog.records if r.name.startswith("multi_dnn_ros")]
    assert all(isinstance(stage, Captured) for stage in prepared)
    assert len(lines) == (2 * len(prepared) if backend == "inductor" else 0)
    # Jobs are held to the tolerance one by one; a whole chain of four may be off by as many times that.
    check_agreement(through(prepared, on_gpu(inputs)), expected, 4 * PRECISIONS[precision].tolerance(GPU))


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_decided_when_a_graph_is_captured_and_not_when_it_is_launched(tf32: bool):
    """fp32 is exact to float32, tf32 is not, whatever the process is set to afterwards."""
    needs("tf32", "cuda_graph")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 512, generator=generator)
    linear = torch.nn.Linear(512, 512, bias=False)
    linear.weight.data = weight

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, carried: Tensors) -> Tensors:
            return (self.linear(carried[0]),)

    values = torch.randn(64, 512, generator=generator)
    prepared = choose_backend("cuda_graph", GPU, "tf32" if tf32 else "fp32").prepare([Product()], (values,), GPU)
    exact = values.double() @ weight.double().T
    with float32_products(not tf32):
        (result,) = through(prepared, on_gpu((values,)))
    error = float((result.double() - exact).abs().max() / exact.abs().max())
    assert (error > 1e-5) == tf32


def test_fp16_convolutions_lie_channels_last(caplog: pytest.LogCaptureFixture):
    backend = choose_backend("cuda_graph", GPU, "fp16", dnn="a")
    prepared = backend.prepare(cut(network(), EXAMPLE, 3, fold_batch_norm=True), EXAMPLE, GPU)
    between = prepared[0].outputs  # type: ignore[attr-defined]
    assert {tensor.dtype for tensor in between} == {torch.float16}
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in between if tensor.ndim == 4)
    (output,) = through(prepared, on_gpu(EXAMPLE))
    assert output.dtype is torch.float32


def test_compiled_kernels_are_found_on_disk_by_the_next_process(tmp_path):
    """A second process compiles nothing: it hits Inductor's cache for each job."""
    needs("fp16", "inductor")
    script = tmp_path / "prepare.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch, torchvision
            from torch._dynamo.utils import counters
            from multi_dnn_ros.models.cut import cut
            from multi_dnn_ros.choices import choose_backend
            device, example = torch.device("cuda", 0), (torch.zeros(1, 3, 64, 64),)
            torch.manual_seed(0)
            module = torchvision.models.resnet18(weights=None).eval()
            choose_backend("inductor", device, sys.argv[1]).prepare(cut(module, example, 2), example, device)
            print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
            """
        )
    )
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def run(precision: str) -> str:
        done = subprocess.run(
            [sys.executable, str(script), precision],
            env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=True,
        )  # fmt: skip
        return done.stdout.strip().splitlines()[-1]

    assert run("fp16") == "0 2"
    assert run("fp16") == "2 0"
    assert run("auto") == "0 2"
