"""Precision and Inductor on a GPU. CPU twins: test/backends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu_stages import GPU, Prepared, needs, on_gpu, through

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.captured_network import Captured
from multi_dnn_ros.backends.precision import PRECISIONS, float32_products
from multi_dnn_ros.serving.choices import choose_backend


@pytest.mark.parametrize(
    ("backend", "precision"),
    [
        *(("cuda_graph", precision) for precision in ("auto", "fp32", "tf32", "fp16", "bf16")),
        # TF32 is switched on around Inductor's kernels as around all others.
        *(("inductor", precision) for precision in ("auto", "fp16", "bf16")),
    ],
)
def test_every_precision_agrees_with_the_cpu_and_every_stage_is_captured(
    backend: str, precision: str, prepared: Callable[[str, str], Prepared]
):
    """With convolutions fused with their ReLUs."""
    needs(precision, backend)
    ready = prepared(backend, precision)
    assert ready.warnings == []
    assert all(isinstance(stage, Captured) for stage in ready.stages)
    assert len(ready.progress) == (2 * len(ready.stages) if backend == "inductor" else 0)
    # Jobs are held to the tolerance one by one; a whole chain may be off by as many times that.
    tolerance = len(ready.stages) * PRECISIONS[precision].tolerance(GPU)
    check_agreement(through(ready.stages, on_gpu(ready.inputs)), ready.expected, tolerance)


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_fixed_when_a_graph_is_captured(tf32: bool):
    """fp32 has float32 accuracy, tf32 has not, regardless of later settings of the process."""
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


def test_the_next_process_finds_compiled_kernels_on_disk(tmp_path):
    """A second process compiles nothing: Inductor's cache has every stage."""
    needs("fp16", "inductor")
    script = tmp_path / "prepare.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch
            from torch import nn
            from torch._dynamo.utils import counters
            from multi_dnn_ros.models.cut import cut_module
            from multi_dnn_ros.serving.choices import choose_backend
            device, example = torch.device("cuda", 0), (torch.zeros(1, 3, 64, 64),)
            torch.manual_seed(0)
            layers = (layer for width in (3, 32, 32, 32) for layer in (nn.Conv2d(width, 32, 3), nn.ReLU()))
            module = nn.Sequential(*layers).eval()
            choose_backend("inductor", device, sys.argv[1]).prepare(cut_module(module, example, 2), example, device)
            print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
            """
        )
    )
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}

    def run(precision: str) -> str:
        done = subprocess.run(
            [sys.executable, str(script), precision],
            env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=True,
        )  # fmt: skip
        return done.stdout.strip().splitlines()[-1]

    assert run("fp16") == "0 2"
    with ThreadPoolExecutor() as pool:  # most of their time is importing PyTorch
        assert list(pool.map(run, ["fp16", "auto"])) == ["2 0", "0 2"]
