"""The division of a batch: properties of both searches."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
from batch_tables import linear, table
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.partition.plan import PlanError, make_plan, plan_subsets
from multi_dnn_ros.partition.tables import BatchTable, sizes_to_measure

SEARCHES = ("exact", "greedy")


@st.composite
def cases(draw: st.DrawFn, max_units: int = 4, max_batch: int = 40) -> tuple[dict[str, BatchTable], int]:
    """Units with arbitrary times, where a larger batch may take less time than a smaller one, and a batch that fits."""
    tables = {}
    for number in range(draw(st.integers(1, max_units))):
        sizes = sizes_to_measure(draw(st.integers(1, max_batch)))
        tables[f"u{number}"] = table(f"u{number}", {size: draw(st.floats(0.01, 50.0)) for size in sizes})
    return tables, draw(st.integers(1, sum(each.largest for each in tables.values())))


def ms(tables: Mapping[str, BatchTable], images: Mapping[str, int]) -> dict[str, float]:
    return {unit: float(tables[unit].times_ms(count)[count]) for unit, count in images.items()}


@settings(max_examples=50)
@given(cases())
def test_images_sum_to_the_batch_within_what_was_measured_and_searches_are_ordered(case) -> None:
    tables, batch = case
    plans = {search: make_plan(tables, batch, search) for search in SEARCHES}
    for plan in plans.values():
        assert list(plan.images) == list(tables)
        assert sum(plan.images.values()) == batch
        assert all(0 <= count <= tables[unit].largest for unit, count in plan.images.items())
        assert plan.ms == pytest.approx(ms(tables, plan.images))
        ends = [first + count for first, count in plan.ranges.values()]
        assert [first for first, _ in plan.ranges.values()] == [0, *ends[:-1]]
        assert ends[-1] == batch
    assert plans["exact"].total_ms <= plans["greedy"].total_ms
    alone = [float(each.times_ms(batch)[batch]) for each in tables.values()]
    assert plans["greedy"].total_ms <= min(alone)


@given(cases(max_units=3, max_batch=6))
def test_exact_search_equals_exhaustive_search(case) -> None:
    tables, batch = case
    every = product(*(range(min(batch, each.largest) + 1) for each in tables.values()))
    divisions = [dict(zip(tables, counts, strict=True)) for counts in every if sum(counts) == batch]
    best = min(max(ms(tables, images).values()) for images in divisions)
    assert make_plan(tables, batch).total_ms == pytest.approx(best)


@settings(max_examples=50)
@given(cases(max_units=3))
def test_more_units_never_take_longer(case) -> None:
    tables, batch = case
    plans = plan_subsets(tables, batch)
    assert len(plans) == 2 ** len(tables) - 1
    for subset, plan in plans.items():
        assert (plan is None) == (sum(tables[unit].largest for unit in subset) < batch)
        if plan is not None:
            assert plans[tuple(tables)].total_ms <= plan.total_ms


@pytest.mark.parametrize("search", SEARCHES)
def test_units_of_known_rates_end_together(search: str) -> None:
    plan = make_plan({"fast": linear("fast", 1.0, 128), "slow": linear("slow", 4.0, 128)}, 100, search)
    assert plan.images == {"fast": 80, "slow": 20}
    assert plan.total_ms == 80.0


@pytest.mark.parametrize("search", SEARCHES)
def test_a_batch_that_is_too_large_is_refused_with_the_capacity(search: str) -> None:
    with pytest.raises(PlanError, match=r"13 images .*\(a 8, b 4\)"):
        make_plan({"a": linear("a", 1.0, 8), "b": linear("b", 1.0, 4)}, 13, search)
    with pytest.raises(PlanError, match=r"1000000000000000 images"):
        make_plan({"a": linear("a", 1.0, 8)}, 10**15, search)  # no memory is taken for it
