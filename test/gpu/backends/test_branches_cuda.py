"""Branches on several streams in one graph: results, repeats, memory. CPU twins: test/backends/test_branch*."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from gpu_stages import EXAMPLE, GPU, Warnings, needs, on_gpu, through
from torch import nn

from multi_dnn_ros.backends import Stage, Tensors, green_contexts
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend

partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")
BACKENDS = pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])


class Wide(nn.Module):
    """Two blocks of four branches of different length and memory, with views and a shortcut over a block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.ModuleList(self._block() for _ in range(2))
        self.head = nn.Linear(32, 10)

    @staticmethod
    def _block() -> nn.ModuleList:
        def branch(length: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for index in range(length):
                layers += [nn.Conv2d(32 if index == 0 else 8, 8, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*layers)

        return nn.ModuleList(branch(length) for length in (1, 2, 3, 5))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.relu(self.first(image))
        for block in self.blocks:
            values = torch.cat([branch(values) for branch in block], 1) + values
        left, right = torch.chunk(values, 2, 1)
        return self.head(values.mean((2, 3))), (left.transpose(2, 3) * right.transpose(2, 3)).sum(1)


@functools.cache  # compiling takes a minute
def prepared(backend: str, branches: int, precision: str = "fp16", jobs: int = 1) -> Sequence[Stage]:
    needs(precision, backend)
    torch.manual_seed(0)
    stages = cut_module(Wide().eval(), EXAMPLE, jobs, fold_batch_norm=True)
    with Warnings() as warnings:
        chosen = choose_backend(backend, GPU, precision, dnn="a", branches=branches)
        found = chosen.prepare(stages, EXAMPLE, GPU)
    assert warnings == []  # no segment stayed eager, no check failed
    return found


@BACKENDS
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("branches", [2, 4, 8])
def test_branches_compute_the_same(backend: str, branches: int, precision: str):
    if backend == "inductor" and branches != 4:
        pytest.skip("compiling takes too long")
    image = on_gpu(noise_like(EXAMPLE))
    serial, parallel = prepared(backend, 1, precision), prepared(backend, branches, precision)
    assert streams_of(serial[0]) == 1
    assert 2 <= streams_of(parallel[0]) <= branches
    check_agreement(through(tuple(parallel), image), through(tuple(serial), image), 2e-2)


@BACKENDS
@pytest.mark.parametrize("jobs", [1, 3])
def test_many_replays_with_changing_inputs_are_bit_equal(backend: str, jobs: int):
    """Memory that is reused too early would be overwritten by another branch in some of them."""
    stages = tuple(prepared(backend, 4, jobs=jobs if backend == "cuda_graph" else 1))
    generator = torch.Generator().manual_seed(1)
    images = [(torch.randn(EXAMPLE[0].shape, generator=generator).to(GPU),) for _ in range(10)]
    expected = [through(stages, image) for image in images]
    for _ in range(50):
        for image, right in zip(images, expected, strict=True):
            assert equal(through(stages, image), right)


@BACKENDS
def test_replays_back_to_back_are_bit_equal_and_allocate_nothing(backend: str):
    """Without waiting on the host: a replay must not start before the streams of the previous one have joined."""
    (stage,) = prepared(backend, 4)
    (image,) = on_gpu(noise_like(EXAMPLE))
    with torch.inference_mode():
        expected = tuple(tensor.clone() for tensor in stage((image,)))
        other = -image
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        for _ in range(200):
            stage((other,))
            results = stage((image,))
        torch.cuda.synchronize(GPU)
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        assert equal(results, expected)


@partitioned
def test_branches_stay_on_the_share_of_the_sms():
    """All kernels on 8 SMs: as slow with branches as without, not as fast as on the whole GPU."""

    class Products(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value @ value + (value + 1) @ value + (value + 2) @ value + (value + 3) @ value

    example = (torch.zeros(4096, 4096),)

    def fastest_ms(sms: int) -> float:
        with green_contexts.computing_on(GPU, sms):
            stages = cut_module(Products().eval(), example, 1)
            (stage,) = choose_backend("cuda_graph", GPU, "fp16", dnn="a", branches=4).prepare(stages, example, GPU)
            assert streams_of(stage) > 1
            with torch.inference_mode():
                return min(gpu_ms(lambda: stage(stage.inputs)) for _ in range(3))

    count = torch.cuda.get_device_properties(GPU).multi_processor_count
    assert fastest_ms(8) > fastest_ms(0) * count / 8 / 3


def equal(results: Tensors, expected: Tensors) -> bool:
    return all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
