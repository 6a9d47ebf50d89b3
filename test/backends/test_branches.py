"""Branches of a graph on streams: every dependency holds, no event is redundant, groups stay together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from multi_dnn_ros.backends.branches import (
    EVENT_S,
    SerialGraphError,
    StreamPlan,
    Work,
    group_work,
    plan_branches,
    plan_streams,
)
from multi_dnn_ros.models.trace import trace

aten = torch.ops.aten
COUNTS = st.sampled_from((1, 2, 3, 4, 8))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Work, ...]:
    """Up to 14 operations in topological order, with any dependencies."""
    work = []
    for index in range(draw(st.integers(1, 14))):
        sources = draw(st.sets(st.integers(0, index - 1), max_size=4)) if index else set()
        cost_s = draw(st.integers(1, 50)) * 1e-6
        work.append(Work((f"op{index}",), tuple(f"op{each}" for each in sorted(sources)), cost_s))
    return tuple(work)


def happens_before(pairs: Iterable[tuple[int, int]], first: int, second: int) -> bool:
    pairs = list(pairs)
    reached, frontier = {first}, [first]
    while frontier:
        here = frontier.pop()
        new = {after for before, after in pairs if before == here} - reached
        reached |= new
        frontier.extend(new)
    return second in reached


def check(plan: StreamPlan, work: Iterable[Work]) -> None:
    """All that a segment reads is computed before it begins: by the order of its stream and by events."""
    home = {name: index for index, segment in enumerate(plan.segments) for name in segment.operations}
    place = {name: number for segment in plan.segments for number, name in enumerate(segment.operations)}
    assert sorted(home) == sorted(name for each in work for name in each.operations)
    streams: dict[int, list[int]] = {}
    for index, segment in enumerate(plan.segments):
        streams.setdefault(segment.stream, []).append(index)
    assert set(streams) == set(range(plan.streams))
    events = [(source, index) for index, segment in enumerate(plan.segments) for source in segment.waits]
    in_order = [pair for indices in streams.values() for pair in pairwise(indices)]
    needed = [(home[source], home[each.name]) for each in work for source in each.sources]
    assert all(first < second for first, second in events)
    for each in work:
        for source in each.sources:
            if home[source] == home[each.name]:
                assert place[source] < place[each.name]
            else:
                assert happens_before(in_order + events, home[source], home[each.name])
    for event in events:
        rest = [pair for pair in in_order + events if pair != event]
        assert not all(happens_before(rest, *pair) for pair in needed)
    assert {index for index, segment in enumerate(plan.segments) if segment.signals} == {
        *(source for source, _ in events), *plan.joins,
    }  # fmt: skip
    assert plan.joins == tuple(streams[stream][-1] for stream in sorted(streams) if stream)


@given(graphs(), COUNTS)
def test_every_dependency_is_respected_and_no_event_is_redundant(work, streams):
    plan = plan_streams(work, streams)
    check(plan, work)
    assert plan.streams <= streams
    if streams == 1:
        assert len(plan.segments) == 1
        assert plan.duration_s == pytest.approx(sum(each.cost_s for each in work))


@given(graphs(), COUNTS, st.integers(0, 400))
def test_groups_contain_every_operation_once_and_form_no_cycles(work, streams, limit_us):
    groups = group_work(work, limit_us * 1e-6)
    check(plan_streams(groups, streams), groups)
    known: set[str] = set()
    for group in groups:
        assert set(group.sources) <= known
        known.add(group.name)
    assert sum(group.cost_s for group in groups) == pytest.approx(sum(each.cost_s for each in work))


def test_equal_branches_get_a_stream_each_with_one_event_at_the_fork_and_one_at_the_join():
    work = [Work(("fork",), (), 20e-6)]
    for branch in range(4):
        sources = ["fork", *(f"b{branch}_{index}" for index in range(4))]
        work += [Work((f"b{branch}_{index}",), (source,), 20e-6) for index, source in enumerate(sources)]
    plan = plan_streams([*work, Work(("join",), tuple(f"b{branch}_4" for branch in range(4)), 20e-6)], 8)
    assert plan.streams == 4
    assert plan.events == 3 + 3
    assert len(plan.segments) == 6  # the fork, four branches, the join
    assert plan.duration_s == pytest.approx(7 * 20e-6 + 2 * EVENT_S)


def test_a_graph_whose_order_matters_is_refused_and_a_chain_stays_on_one_stream():
    class Random(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value + torch.rand_like(value)

    graph = fx.Graph()
    value = graph.placeholder("value")
    graph.output((graph.call_function(aten.add_.Tensor, (value, 1.0)),))
    for graph_module in (fx.GraphModule(nn.Module(), graph), trace(Random().eval(), (torch.zeros(2),))):
        with pytest.raises(SerialGraphError, match="has side effects"):
            plan_branches(graph_module, 2)
    chain = trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval(), (torch.zeros(1, 3, 9, 9),))
    assert plan_branches(chain, 8).streams == 1
