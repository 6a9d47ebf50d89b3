"""Branches as Inductor's segments on several streams in one graph: results, repeats, memory, choice. On a CPU:
test/backends/test_branched_segments.py, test_branched_stages.py and test_inductor.py."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from branch_checks import (
    Wide,
    is_not_slower,
    many_replays_are_bit_equal,
    replays_allocate_nothing,
    replays_back_to_back_are_bit_equal,
)
from gpu_stages import EXAMPLE, GPU, Warnings, needs, on_gpu, through
from torch import nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.benchmark.paper.branches import WIDTH, EncoderLayer
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend

#: Search map and template map of an encoder layer.
MAPS = (torch.zeros(1, 16, 16, WIDTH), torch.zeros(1, 8, 8, WIDTH))
EXAMPLES = {"wide": EXAMPLE, "encoder": MAPS}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (Wide() if name == "wide" else EncoderLayer((1, 2, 4, 8))).eval()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests here, which compile the same segments."""
    needs("fp16", "inductor")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "compiled_branches"))


@dataclass(frozen=True)
class Prepared:
    """warnings: logged meanwhile. progress: the backend's lines."""

    stages: Sequence[Stage]
    warnings: list[str]
    progress: list[str]


def prepare(name: str, branches: str, jobs: int = 1, precision: str = "fp16") -> Prepared:
    progress: list[str] = []
    with Warnings() as warnings:
        backend = choose_backend("inductor", GPU, precision, dnn="a", branches=branches, progress=progress.append)
        example = EXAMPLES[name]
        stages = cut_module(network(name), example, jobs, fold_batch_norm=True)
        return Prepared(backend.prepare(stages, example, GPU), warnings, progress)


prepared = functools.cache(prepare)


def images(name: str, count: int) -> list[Tensors]:
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(each.shape, generator=generator).to(GPU) for each in EXAMPLES[name]) for _ in range(count)
    ]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("branches", ["2", "4"])
def test_compiled_branches_compute_the_same(name: str, branches: str):
    serial, parallel = prepared(name, "1"), prepared(name, branches)
    assert serial.warnings == parallel.warnings == []  # no segment stayed eager, no check failed
    assert streams_of(serial.stages[0]) == 1
    assert 2 <= streams_of(parallel.stages[0]) <= int(branches)
    assert any(line.startswith("compiling segment 2 of ") for line in parallel.progress)
    assert not any("segment" in line for line in serial.progress)
    inputs = noise_like(EXAMPLES[name])
    results = through(tuple(parallel.stages), on_gpu(inputs))
    check_agreement(results, through(tuple(serial.stages), on_gpu(inputs)), 2e-2)
    with torch.inference_mode():
        expected = network(name)(*inputs)
    check_agreement(results, expected if isinstance(expected, tuple) else (expected,), 2e-2)


def test_float32_segments_compute_the_same():
    """Without channels_last, the segments change layouts at their borders."""
    parallel = prepare("wide", "4", precision="fp32")
    assert parallel.warnings == []
    assert streams_of(parallel.stages[0]) > 1
    inputs = noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = network("wide")(*inputs)
    check_agreement(through(tuple(parallel.stages), on_gpu(inputs)), expected, 1e-3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_many_replays_with_changing_inputs_are_bit_equal(name: str):
    many_replays_are_bit_equal(prepared(name, "4").stages, images(name, 10))


@pytest.mark.parametrize("name", EXAMPLES)
def test_replays_back_to_back_are_bit_equal(name: str):
    (stage,) = prepared(name, "4").stages
    replays_back_to_back_are_bit_equal(stage, *images(name, 2))


def test_replays_allocate_nothing():
    (stage,) = prepared("encoder", "4").stages
    (maps,) = images("encoder", 1)
    replays_allocate_nothing(stage, maps)


def test_the_automatic_choice_is_not_slower_and_is_cached(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "multi_dnn_ros")
    (serial,) = prepared("encoder", "1").stages
    first = prepare("encoder", "auto")
    (chosen,) = first.stages
    assert first.warnings == []
    assert "job 1 of a runs on " in caplog.text
    is_not_slower(chosen, serial)
    compiled = {
        line.split(" of job ")[0].split()[-1] for line in first.progress if line.startswith("compiling segment")
    }
    assert len(compiled) <= 1  # the segments of one number of streams only
    caplog.clear()
    again = prepare("encoder", "auto")
    assert streams_of(again.stages[0]) == streams_of(chosen)
    assert "runs on" not in caplog.text
