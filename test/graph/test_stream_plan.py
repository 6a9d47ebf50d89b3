"""Operations on streams: every dependency holds, no event is redundant, the critical path comes first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
import torch
from critical_path import critical_path
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.graph import stream_plan
from multi_dnn_ros.graph.branches import DeviceOperation
from multi_dnn_ros.graph.stream_plan import EVENT_S, WAIT_S, StreamPlan, plan_streams

aten = torch.ops.aten
COUNTS = (1, 2, 3, 4, 8)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[DeviceOperation, ...]:
    """Up to 14 operations in topological order, with any dependencies."""
    count = draw(st.integers(0, 14))
    operations = []
    for index in range(count):
        sources = draw(st.sets(st.integers(0, index - 1), max_size=4)) if index else set()
        cost_s = draw(st.integers(1, 50)) * 1e-6
        operations.append(DeviceOperation(f"op{index}", tuple(f"op{each}" for each in sorted(sources)), cost_s))
    return tuple(operations)


def edges(plan: StreamPlan) -> list[tuple[str, str]]:
    """What the device guarantees: order within a stream, and events."""
    streams: dict[int, list[str]] = {}
    for step in plan.steps:
        streams.setdefault(step.stream, []).append(step.name)
    in_order = [pair for names in streams.values() for pair in pairwise(names)]
    return in_order + [(source, step.name) for step in plan.steps for source in step.waits]


def happens_before(pairs: Iterable[tuple[str, str]], first: str, second: str) -> bool:
    pairs = list(pairs)
    reached, frontier = {first}, [first]
    while frontier:
        here = frontier.pop()
        new = {after for before, after in pairs if before == here} - reached
        reached |= new
        frontier.extend(new)
    return second in reached


def dependencies(operations: Iterable[DeviceOperation]) -> list[tuple[str, str]]:
    return [(source, each.name) for each in operations for source in each.sources]


@given(graphs(), st.sampled_from(COUNTS))
def test_every_dependency_is_respected_and_no_event_is_redundant(operations, streams):
    plan = plan_streams(operations, streams)
    pairs, needed = edges(plan), dependencies(operations)
    assert all(happens_before(pairs, *each) for each in needed)
    for step in plan.steps:
        for source in step.waits:
            rest = [pair for pair in pairs if pair != (source, step.name)]
            assert not all(happens_before(rest, *each) for each in needed)


@given(graphs(), st.sampled_from(COUNTS))
def test_every_operation_runs_once_after_its_sources_were_issued(operations, streams):
    plan = plan_streams(operations, streams)
    assert sorted(step.name for step in plan.steps) == sorted(each.name for each in operations)
    position = {step.name: index for index, step in enumerate(plan.steps)}
    assert all(position[before] < position[after] for before, after in dependencies(operations))
    used = {step.stream for step in plan.steps}
    assert used == set(range(plan.streams))
    assert plan.streams <= streams


@given(graphs(), st.sampled_from(COUNTS))
def test_events_are_recorded_where_a_stream_waits_and_all_streams_join(operations, streams):
    plan = plan_streams(operations, streams)
    waited = {source for step in plan.steps for source in step.waits} | set(plan.joins)
    assert {step.name for step in plan.steps if step.signals} == waited
    last = {step.stream: step.name for step in plan.steps}
    assert plan.joins == tuple(last[stream] for stream in sorted(last) if stream)


@given(graphs(), st.sampled_from(COUNTS))
def test_the_duration_is_between_the_critical_path_and_all_operations(operations, streams):
    plan = plan_streams(operations, streams)
    total_s = sum(each.cost_s for each in operations)
    assert plan.duration_s >= critical_path(operations)[1] * (1 - 1e-9)
    if streams == 1:
        assert plan.duration_s == pytest.approx(total_s)
        assert not any(step.waits for step in plan.steps)


@given(graphs(), st.sampled_from(COUNTS), st.sampled_from((0.0, WAIT_S, 50e-6)))
def test_groups_of_operations_never_make_a_plan_worse(operations, streams, wait_s):
    single = stream_plan._plan(operations, tuple((each.name,) for each in operations), streams, EVENT_S)
    plan = plan_streams(operations, streams, wait_s=wait_s)
    assert plan.events == sum(len(step.waits) for step in plan.steps)
    assert plan.duration_s + wait_s * plan.events <= (single.duration_s + wait_s * single.events) * (1 + 1e-9)


@given(graphs(), st.sampled_from(COUNTS))
def test_plans_are_deterministic(operations, streams):
    assert plan_streams(operations, streams) == plan_streams(operations, streams)


def wide(branches: int, length: int, cost_s: float = 20e-6) -> list[DeviceOperation]:
    """A fork into equal branches, and their join."""
    operations = [DeviceOperation("fork", (), cost_s)]
    for branch in range(branches):
        for index in range(length):
            source = f"b{branch}_{index - 1}" if index else "fork"
            operations.append(DeviceOperation(f"b{branch}_{index}", (source,), cost_s))
    ends = tuple(f"b{branch}_{length - 1}" for branch in range(branches))
    return [*operations, DeviceOperation("join", ends, cost_s)]


def test_equal_branches_get_a_stream_each_with_one_event_at_the_fork_and_one_at_the_join():
    plan = plan_streams(wide(4, 5), 8)
    assert plan.streams == 4
    waits = {step.name: step.waits for step in plan.steps if step.waits}
    starts = [name for name in waits if name.endswith("_0")]
    assert len(starts) == 3
    assert all(waits[name] == ("fork",) for name in starts)
    assert len(waits["join"]) == 3
    assert len(waits) == 4
    assert plan.duration_s == pytest.approx(7 * 20e-6 + 2 * EVENT_S)


def heads(count: int) -> list[DeviceOperation]:
    """Attention heads: three small operations that read the same, joined by larger ones; then a common chain."""
    operations = [DeviceOperation("norm", (), 5e-6)]
    for head in range(count):
        for name in ("query", "key", "value"):
            operations.append(DeviceOperation(f"{name}{head}", ("norm",), 3e-6))
            operations.append(DeviceOperation(f"{name}_split{head}", (f"{name}{head}",), 3e-6))
        weights = (f"query_split{head}", f"key_split{head}")
        operations.append(DeviceOperation(f"weights{head}", weights, 15e-6))
        operations.append(DeviceOperation(f"head{head}", (f"weights{head}", f"value_split{head}"), 15e-6))
    return [*operations, DeviceOperation("cat", tuple(f"head{head}" for head in range(count)), 5e-6)]


def test_each_attention_head_stays_on_one_stream():
    operations = heads(4)
    plan = plan_streams(operations, 4)
    streams = {number: {step.stream for step in plan.steps if step.name.endswith(str(number))} for number in range(4)}
    assert sorted(streams.values(), key=str) == [{0}, {1}, {2}, {3}]
    assert plan.events == 3 + 3
    single = stream_plan._plan(operations, tuple((each.name,) for each in operations), 4, EVENT_S)
    assert single.events > plan.events


def test_a_chain_stays_on_one_stream():
    chain = [DeviceOperation(f"op{n}", (f"op{n - 1}",) if n else (), 1e-6) for n in range(20)]
    assert plan_streams(chain, 8).streams == 1


def test_the_critical_path_stays_on_the_stream_of_the_inputs():
    operations = wide(3, 2)
    operations = [
        DeviceOperation(each.name, each.sources, 100e-6 if each.name.startswith("b1") else each.cost_s)
        for each in operations
    ]
    plan = plan_streams(operations, 2)
    stream_of = {step.name: step.stream for step in plan.steps}
    chain, seconds = critical_path(operations)
    assert {stream_of[name] for name in chain} == {0}
    assert plan.duration_s == pytest.approx(seconds)


def test_a_branch_that_is_shorter_than_an_event_gets_no_stream():
    short = [
        DeviceOperation("fork", (), 5e-6),
        DeviceOperation("short", ("fork",), 0.2e-6),
        DeviceOperation("long", ("fork", "short"), 50e-6),
        DeviceOperation("side", ("fork",), 0.1e-6),
    ]
    assert plan_streams(short, 8, event_s=100e-6).streams == 1
    assert plan_streams(short, 8, event_s=0.0).streams == 2
