"""Precision and Inductor on a GPU. CPU twins: test/backends."""

from __future__ import annotations

from collections.abc import Callable

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
