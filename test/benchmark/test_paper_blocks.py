"""Blocks of the paper's experiments, in one process and without clocks: order, resuming, lower bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from multi_dnn_ros.benchmark.paper import measure as measuring
from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS
from multi_dnn_ros.benchmark.paper.measure import Plan, blocks_done, estimate_s, measure
from multi_dnn_ros.benchmark.paper.prepare import Work
from multi_dnn_ros.benchmark.paper.process_group import DnnReport, ProcessGroupError, Report
from multi_dnn_ros.benchmark.paper.report import markdown
from multi_dnn_ros.benchmark.paper.sets import SETS
from multi_dnn_ros.benchmark.paper.time_bound import Rates, lower_bounds
from multi_dnn_ros.compression.macs import Cost

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
#: Cached because all tests have the same networks, and decomposing them takes seconds.
_measure_costs = cache(measuring.measure_costs)


class _FakeProcessGroup:
    """Answers immediately; each condition has a fixed time, and those in `broken` fail when they run."""

    broken: frozenset[str] = frozenset()
    asked: list[str]

    def __init__(self, name: str, works: Sequence[Work]) -> None:
        self.name, self._works = name, works

    def prepare(self, timeout_s: float, *, first_alone: bool = False) -> tuple[str, ...]:
        return ("job 2 runs eager",) if self.name == "ours" else ()

    def run(self, seconds: float, *, ticker: bool = False) -> list[Report]:
        if self.name in self.broken and seconds > 0.5:
            raise ProcessGroupError(f"condition {self.name}: out of memory")
        if not ticker and seconds > 0.5:
            self.asked.append(self.name)
        ms = {"ori_mp": 8.0, "dcomp_mp": 6.0}.get(self.name, 2.0)
        return [
            Report(tuple(DnnReport(network.builder, [ms, ms], 2, 5.0) for network in work.networks), (0.1, 0.3))
            for work in self._works
        ]

    def resident_bytes(self) -> int:
        return 1 << 20

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> _FakeProcessGroup:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _InThisThread(Executor):
    """Fake tensors crash PyTorch 2.11 in a second thread that is not the main one."""

    def __init__(self, count: int, mp_context: object) -> None:
        pass

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future:
        future: Future = Future()
        future.set_result(call(*arguments, **named))
        return future


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(measuring, "ProcessGroup", _FakeProcessGroup)
    monkeypatch.setattr(measuring, "ProcessPoolExecutor", _InThisThread)
    monkeypatch.setattr(measuring, "measure_costs", _measure_costs)
    monkeypatch.setattr(measuring, "measure_rates", lambda *arguments: Rates(1e9, {"fp32": 1e9}))
    _FakeProcessGroup.asked = []
    _FakeProcessGroup.broken = frozenset()
    return _FakeProcessGroup.asked


PLAN = Plan(
    sets=(SETS["small"],),
    conditions=tuple(CONDITIONS[name] for name in ("ori_mp", "dcomp_mp", "ours")),
    device=CPU,
    repeats=3,
    seconds=1.0,
)


def test_each_block_runs_every_condition_once_in_its_own_order(asked: list[str]) -> None:
    content = measure(PLAN, {}, lambda content: None, lambda text: None)
    blocks = [asked[first : first + 3] for first in range(0, 9, 3)]
    assert blocks == [[condition.name for condition in PLAN.order(SETS["small"], block)] for block in range(3)]
    assert all(sorted(block) == ["dcomp_mp", "ori_mp", "ours"] for block in blocks)
    assert len({tuple(PLAN.order(SETS["small"], block)) for block in range(20)}) > 1
    summary = content["sets"]["small"]["summary"]
    assert summary["ours"]["of_ori_mp"] == {"resnet18": 0.25, "squeezenet1_1": 0.25, "all": 0.25}
    assert summary["ours"]["ms"]["resnet18"]["samples"] == 12
    assert summary["ours"]["stall_ms"] == 0.3
    assert estimate_s(PLAN) < estimate_s(replace(PLAN, repeats=9))


def test_an_interrupted_run_keeps_its_blocks(asked: list[str]) -> None:
    saved: list[dict[str, Any]] = []

    class _CutError(Exception):
        pass

    def save(content: Any) -> None:
        saved.append(json.loads(json.dumps(content)))
        if len(saved) == 2:
            raise _CutError

    with pytest.raises(_CutError):
        measure(PLAN, {}, save, lambda text: None)
    assert blocks_done(saved[-1]["sets"]["small"]) == 2
    before = list(asked)
    asked.clear()
    content = measure(PLAN, saved[-1], lambda content: None, lambda text: None)
    assert asked == [condition.name for condition in PLAN.order(SETS["small"], 2)]
    assert blocks_done(content["sets"]["small"]) == 3
    assert [run["block"] for run in content["sets"]["small"]["conditions"]["ours"]["runs"]] == [0, 1, 2]
    assert len(before) == 6


def test_a_failing_condition_is_left_out_and_reported(asked: list[str]) -> None:
    _FakeProcessGroup.broken = frozenset({"dcomp_mp"})
    content = {
        "scenario": "paper",
        "command": "multi-dnn benchmark paper",
        "machine": {"cpu": "a CPU", "gpu": None},
        "versions": {"torch": "2"},
        **measure(PLAN, {}, lambda content: None, lambda text: None),
    }
    conditions = content["sets"]["small"]["conditions"]
    assert conditions["dcomp_mp"]["error"] == "condition dcomp_mp: out of memory"
    assert [len(conditions[name]["runs"]) for name in ("ori_mp", "dcomp_mp", "ours")] == [3, 0, 3]
    asked.clear()
    _FakeProcessGroup.broken = frozenset()
    measure(replace(PLAN, repeats=4), content, lambda content: None, lambda text: None)
    assert sorted(asked) == ["ori_mp", "ours"]  # dcomp_mp missed blocks that the others completed
    text = markdown(content)
    assert "- dcomp_mp failed: condition dcomp_mp: out of memory" in text
    assert "- ours: job 2 runs eager" in text


def test_the_lower_bound_is_the_larger_of_traffic_and_arithmetic() -> None:
    dnns, rates = SETS["small"], Rates(1e9, {"fp32": 1e12, "fp16": 4e12})
    costs = {(network, None): Cost(macs=10**9, parameters=0, bytes=10**6) for network in dnns.kinds}
    floor = lower_bounds(dnns, CONDITIONS["ours"], costs, rates, CUDA)
    assert (floor["ms"], floor["bound"]) == (pytest.approx(6.0), "operations")
    floor = lower_bounds(dnns, CONDITIONS["ours_fp16"], costs, rates, CUDA)
    assert floor["ms"] == pytest.approx(1.5)
    assert floor["weight_bytes"] == 1_500_000  # half of fp32's
    batched = lower_bounds(dnns, CONDITIONS["ours_batched_fp16"], costs, rates, CUDA)
    assert (batched["ms"], batched["weight_bytes"]) == (pytest.approx(1.5), 1_000_000)  # ResNet18's once for both
    floor = lower_bounds(dnns, CONDITIONS["ours"], costs, replace(rates, bytes_per_s=1e8), CUDA)
    assert (floor["ms"], floor["bound"]) == (pytest.approx(30.0), "bandwidth")
