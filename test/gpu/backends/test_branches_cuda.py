"""Branches on several streams in one graph: results, repeats, memory, choice. CPU twins: test/backends/test_branch*."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from branch_checks import (
    Wide,
    is_not_slower,
    many_replays_are_bit_equal,
    replays_allocate_nothing,
    replays_back_to_back_are_bit_equal,
)
from gpu_stages import EXAMPLE, GPU, Warnings, fire, needs, on_gpu, residual, through
from torch import nn

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend

partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def no_warnings() -> Iterator[None]:
    with Warnings() as messages:
        yield
    assert messages == []


def prepared(branches: str, precision: str = "fp16", jobs: int = 1, module: nn.Module | None = None) -> tuple:
    torch.manual_seed(0)
    stages = cut_module((module or Wide()).eval(), EXAMPLE, jobs, fold_batch_norm=True)
    return choose_backend("cuda_graph", GPU, precision, dnn="a", branches=branches).prepare(stages, EXAMPLE, GPU)


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
@pytest.mark.parametrize("branches", ["2", "4", "8"])
@pytest.mark.usefixtures("no_warnings")
def test_branches_compute_the_same(branches: str, precision: str):
    needs(precision, "cuda_graph")
    image = on_gpu(noise_like(EXAMPLE))
    serial, parallel = prepared("1", precision), prepared(branches, precision)
    assert streams_of(serial[0]) == 1
    assert 2 <= streams_of(parallel[0]) <= int(branches)
    check_agreement(through(parallel, image), through(serial, image), 1e-2 if precision == "fp16" else 1e-3)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.usefixtures("no_warnings")
def test_many_replays_with_changing_inputs_are_bit_equal(jobs: int):
    stages = prepared("8", jobs=jobs)
    generator = torch.Generator().manual_seed(1)
    images = [(torch.randn(EXAMPLE[0].shape, generator=generator).to(GPU),) for _ in range(10)]
    many_replays_are_bit_equal(stages, images)


@pytest.mark.usefixtures("no_warnings")
def test_replays_back_to_back_are_bit_equal():
    (stage,) = prepared("8")
    (image,) = on_gpu(noise_like(EXAMPLE))
    replays_back_to_back_are_bit_equal(stage, (image,), (-image,))


@pytest.mark.usefixtures("no_warnings")
def test_replays_allocate_nothing():
    (stage,) = prepared("8")
    replays_allocate_nothing(stage, on_gpu(noise_like(EXAMPLE)))


def test_the_automatic_choice_is_not_slower_and_is_cached(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "multi_dnn_ros")
    (serial,), (chosen,) = prepared("1"), prepared("auto")
    assert "job 1 of a runs on " in caplog.text
    is_not_slower(chosen, serial)
    caplog.clear()
    (again,) = prepared("auto")
    assert streams_of(again) == streams_of(chosen)
    assert "runs on" not in caplog.text


@pytest.mark.parametrize("make", [residual, fire])
def test_other_networks_run_with_an_automatic_choice(make):
    module = make()
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = (module(*image),)
    check_agreement(through(prepared("auto", module=module), on_gpu(image)), expected, 2e-2)


@partitioned
@pytest.mark.usefixtures("no_warnings")
def test_branches_stay_on_the_share_of_the_sms():
    """All kernels on 8 SMs: as slow with branches as without, not as fast as on the whole GPU."""

    class Products(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value @ value + (value + 1) @ value + (value + 2) @ value + (value + 3) @ value

    example = (torch.zeros(4096, 4096),)

    def fastest_ms(sms: int) -> float:
        with green_contexts.computing_on(GPU, sms):
            stages = cut_module(Products().eval(), example, 1)
            (stage,) = choose_backend("cuda_graph", GPU, "fp16", dnn="a", branches="4").prepare(stages, example, GPU)
            assert streams_of(stage) > 1
            with torch.inference_mode():
                return min(gpu_ms(lambda: stage(stage.inputs)) for _ in range(3))

    count = torch.cuda.get_device_properties(GPU).multi_processor_count
    assert fastest_ms(8) > fastest_ms(0) * count / 8 / 3
