"""Merged siblings in the backends: compared, chosen by measurement, cached, with shared weights."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_branched_graph import EXAMPLE, Block
from torch import nn

from multi_dnn_ros.backends import Shared, Stage, merged_siblings, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.batches import prepare_batches
from multi_dnn_ros.backends.branch_choice import ChoiceCache
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.merged_siblings import MergedSiblings
from multi_dnn_ros.graph.cut import GraphStage, cut_graph, cut_module
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.pipeline.choices import choose_backend

CPU = torch.device("cpu")


class Two(nn.Module):
    """Two blocks whose three 1x1 convolutions read the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(3), Block(16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(image))
        return result


@functools.cache
def traced(images: int) -> torch.fx.GraphModule:
    """The graph that :func:`cut_module` splits."""
    torch.manual_seed(0)
    return trace(Two().eval(), (EXAMPLE[0][:images],), fold_batch_norm=True)


def stages(jobs: int = 2, images: int = len(EXAMPLE[0])) -> list[GraphStage]:
    return cut_graph(traced(images), jobs)


def is_merged(chain: Sequence[Stage]) -> bool:
    return any("_merged_" in name for stage in chain for name, _ in stage.named_buffers())  # type: ignore[attr-defined]


class Clock:
    """Returns the milliseconds of the separate and of the merged stages in turn."""

    def __init__(self, separate: float, merged: float) -> None:
        self.times, self.calls = (separate, merged), 0

    def __call__(self, call: Callable[[], object]) -> float:
        call()
        self.calls += 1
        return self.times[(self.calls - 1) % 2]


def backend(setting: str, folder: Path, clock: Clock | None = None, **more: Any) -> MergedSiblings:
    cache = ChoiceCache(folder, "siblings", (1, 2))
    return MergedSiblings(Eager(), setting, 1e-4, "a", lambda: "a CPU", cache=cache, ms=clock, **more)


def test_always_merges_and_computes_the_same(tmp_path) -> None:
    chain = backend("always", tmp_path).prepare(stages(), EXAMPLE, CPU)
    assert is_merged(chain)
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        check_agreement(run_stages(chain, image), run_stages(stages(), image), 1e-5)


@pytest.mark.parametrize(("merged_ms", "chosen"), [(0.9, True), (0.99, False), (2.0, False)])
def test_measured_merges_only_where_that_is_clearly_faster_and_keeps_the_choice(
    tmp_path, caplog, merged_ms: float, chosen: bool
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(1.0, merged_ms)
    assert is_merged(backend("measured", tmp_path, clock).prepare(stages(), EXAMPLE, CPU)) == chosen
    words = "merged" if chosen else "separate"
    assert f"sibling operations of a are {words} (separate 1.000 ms, merged {merged_ms:.3f} ms)" in caplog.text
    again = Clock(1.0, 1.0)
    assert is_merged(backend("measured", tmp_path, again).prepare(stages(), EXAMPLE, CPU)) == chosen
    assert clock.calls
    assert not again.calls


def test_wrong_results_keep_the_operations_separate(tmp_path, caplog, monkeypatch) -> None:
    right = merged_siblings.merge_siblings

    def wrong(*args: Any) -> Any:
        own = right(*args)
        if own is not None:
            next(iter(own.buffers())).add_(1.0)
        return own

    monkeypatch.setattr(merged_siblings, "merge_siblings", wrong)
    assert not is_merged(backend("always", tmp_path).prepare(stages(), EXAMPLE, CPU))
    assert "sibling operations of a stay separate: result 0 is off by" in caplog.text


def test_batch_sizes_share_the_merged_weights(tmp_path) -> None:
    one = (EXAMPLE[0][:1],)
    shared = Shared()
    own = backend("always", tmp_path)
    chains = {1: stages(1, 1), 2: stages(1, 2)}
    ready = prepare_batches(own, chains, one, CPU, 1e-4)
    assert all(is_merged(chain) for chain in ready.values())
    addresses = [
        {buffer.data_ptr() for stage in chain for name, buffer in stage.named_buffers() if "_merged_" in name}  # type: ignore[attr-defined]
        for chain in ready.values()
    ]
    assert addresses[0] == addresses[1]
    assert not shared.merged


def test_a_dnn_without_siblings_is_passed_on(tmp_path) -> None:
    chain = cut_module(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), EXAMPLE, 1)
    clock = Clock(1.0, 1.0)
    (ready,) = backend("measured", tmp_path, clock).prepare(chain, EXAMPLE, CPU)
    assert ready is chain[0]
    assert not clock.calls


@pytest.mark.parametrize("name", ["eager", "torchscript", "onnxruntime"])
@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_every_backend_of_a_cpu_runs_merged_siblings(name: str, precision: str) -> None:
    if (name, precision) == ("onnxruntime", "bf16"):
        pytest.skip("onnxruntime has no bf16")
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        expected = run_stages(stages(), image)
        chain = choose_backend(name, CPU, precision, merge_siblings="always").prepare(stages(), EXAMPLE, CPU)
        check_agreement(run_stages(chain, image), expected, 1e-4 if precision == "auto" else 8e-2)
