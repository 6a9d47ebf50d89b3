"""The number of jobs for a bound on their duration, and the cut that respects it."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.models.partition import fewest_runs, partition

# Integers: their sums are exact in any order.
costs = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=12)


def fewest_by_trying(layers: list[float], limit: float) -> int:
    """Optimum over all cuts, by dynamic programming over the layers."""
    best = [0]
    for end in range(1, len(layers) + 1):
        begins = [begin for begin in range(end) if end - begin == 1 or sum(layers[begin:end]) <= limit]
        best.append(1 + min(best[begin] for begin in begins))
    return best[-1]


@given(costs, st.integers(0, 40).map(float), st.data())
def test_only_single_layers_exceed_the_limit_and_runs_are_as_few_as_possible(
    layers: list[float], limit: float, data: st.DataObject
) -> None:
    runs = fewest_runs(layers, limit)
    assert runs == fewest_by_trying(layers, limit)
    cut_costs = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(layers), max_size=len(layers)))
    more = data.draw(st.integers(runs, len(layers)))
    starts = partition(layers, cut_costs, more, 0.03, limit)
    assert len(starts) == more
    assert starts[0] == 0
    for begin, end in pairwise([*starts, len(layers)]):
        assert end - begin == 1 or sum(layers[begin:end]) <= limit


def test_runs_are_balanced_within_the_limit() -> None:
    assert partition([1.0] * 8, [0.0] * 8, fewest_runs([1.0] * 8, 6.0), 0.03, 6.0) == [0, 4]
    assert partition([1.0] * 8, [0.0] * 8, 2, 0.03, 2.0) == [0, 4]  # two runs cannot meet the limit, but are balanced


def test_a_layer_longer_than_the_bound_is_a_job_of_its_own() -> None:
    module = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(6))).eval()
    (stage,) = cut_module(module, (torch.rand(1, 3, 4, 4),), 1)
    seconds = dict(zip(stage.operations, (1.0, 1.0, 9.0, 1.0, 1.0, 1.0), strict=True))
    jobs = fewest_runs(list(seconds.values()), 2.0)
    stages = cut_module(module, (torch.rand(1, 3, 4, 4),), jobs, costs=lambda node: seconds[node.name], limit_s=2.0)
    assert sorted(stage.cost_s for stage in stages) == [1.0, 2.0, 2.0, 9.0]
