"""Groups of operations: every operation once, no cycles between groups, runs and cones as documented."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_stream_plan import graphs, heads, wide

from multi_dnn_ros.graph.branches import branches, readers
from multi_dnn_ros.graph.operation_groups import combine, group_operations

LIMITS_S = (0.0, 20e-6, 60e-6, 1.0)


@given(graphs(), st.sampled_from(LIMITS_S))
def test_every_operation_is_in_one_group_and_the_groups_have_no_cycles(operations, limit_s):
    groups = group_operations(operations, limit_s)
    assert sorted(name for group in groups for name in group) == sorted(each.name for each in operations)
    position = {name: index for index, group in enumerate(groups) for name in group}
    inside = {name: index for group in groups for index, name in enumerate(group)}
    for operation in operations:
        for source in operation.sources:
            assert position[source] <= position[operation.name]
            if position[source] == position[operation.name]:
                assert inside[source] < inside[operation.name]


@given(graphs(), st.sampled_from(LIMITS_S))
def test_only_the_last_operation_of_a_group_is_read_outside(operations, limit_s):
    after = readers(operations)
    for group in group_operations(operations, limit_s):
        for name in group[:-1]:
            assert after[name]
            assert set(after[name]) <= set(group)


@given(graphs())
def test_without_a_limit_the_groups_are_the_runs_between_forks_and_joins(operations):
    assert set(group_operations(operations, 0.0)) == set(branches(operations))


@given(graphs(), st.sampled_from(LIMITS_S))
def test_combined_operations_have_the_costs_and_sources_of_their_groups(operations, limit_s):
    groups = group_operations(operations, limit_s)
    combined = combine(operations, groups)
    assert sum(each.cost_s for each in combined) == pytest.approx(sum(each.cost_s for each in operations))
    seen: set[str] = set()
    for operation in combined:
        assert set(operation.sources) <= seen
        seen.add(operation.name)
    group_of = {name: group[-1] for group in groups for name in group}
    crossing = {
        (group_of[source], group_of[each.name])
        for each in operations
        for source in each.sources
        if group_of[source] != group_of[each.name]
    }
    assert crossing == {(source, each.name) for each in combined for source in each.sources}


@given(graphs())
def test_all_operations_form_one_group_if_all_are_for_one_result(operations):
    ends = [each.name for each in operations if not readers(operations)[each.name]]
    groups = group_operations(operations, 1.0)
    assert len(groups) >= len(ends)
    if len(ends) == 1:
        assert len(groups) == 1


def test_a_head_is_a_group_if_it_is_within_the_limit():
    operations = heads(3)
    head_s = 3 * 6e-6 + 2 * 15e-6
    groups = group_operations(operations, head_s * 1.01)
    assert sorted(map(len, groups)) == [1, 1, 8, 8, 8]
    smaller = group_operations(operations, head_s * 0.99)
    assert max(map(len, smaller)) < 8


def test_branches_of_a_block_stay_separate_under_any_limit_below_the_block():
    operations = wide(4, 5)
    assert sorted(map(len, group_operations(operations, 21 * 20e-6))) == [1, 1, 5, 5, 5, 5]
    chain = group_operations(operations, 1.0)
    assert len(chain) == 1
    assert all(left != right for left, right in pairwise(chain[0]))
