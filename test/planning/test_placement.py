"""The choice of devices: compared with all placements, and its guarantees for any times, rates and memory."""

from __future__ import annotations

import itertools
import logging
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from multi_dnn_ros.planning.placement import (
    Cost,
    DnnLoad,
    Placement,
    PlacementError,
    choose_placement,
    evaluate,
    placement_table,
)
from multi_dnn_ros.serving.choose_devices import choose_devices
from multi_dnn_ros.serving.host import DeviceCosts
from multi_dnn_ros.settings.flat_parameters import to_config

NAMES = ("cuda:0", "cuda:1", "cpu", "cpu:2")


@st.composite
def problems(draw: st.DrawFn, dnns: int = 4, devices: int = 3) -> tuple[list[DnnLoad], dict[str, int]]:
    names = NAMES[: draw(st.integers(1, devices))]
    memory = {name: draw(st.integers(50, 400)) for name in names}
    cost = st.builds(Cost, st.floats(0.1, 100.0), st.integers(0, 150))
    loads = [
        DnnLoad(
            f"dnn{number}",
            draw(st.floats(0.5, 60.0)),
            {name: draw(cost) for name in names if name == names[0] or draw(st.booleans())},
            draw(st.none() | st.floats(5.0, 200.0)),
        )
        for number in range(draw(st.integers(1, dnns)))
    ]
    return loads, memory


def all_placements(loads: list[DnnLoad], memory: dict[str, int]) -> list[Placement]:
    """Every possible placement."""
    found = []
    for choice in itertools.product(memory, repeat=len(loads)):
        devices = {load.dnn: device for load, device in zip(loads, choice, strict=True)}
        if all(devices[load.dnn] in load.costs for load in loads) and fits(loads, devices, memory):
            found.append(evaluate(loads, devices, memory))
    return found


def fits(loads: list[DnnLoad], devices: dict[str, str], memory: dict[str, int]) -> bool:
    return all(
        sum(load.costs[name].memory_bytes for load in loads if devices[load.dnn] == name) <= limit
        for name, limit in memory.items()
    )


def baseline_ms(loads: list[DnnLoad], memory: dict[str, int]) -> float:
    """Latency with all DNNs on the first device that can hold them, if it can serve the rates."""
    for name in memory:
        devices = {load.dnn: name for load in loads}
        if all(name in load.costs for load in loads) and fits(loads, devices, memory):
            alone = evaluate(loads, devices, memory)
            return max(alone.latency_ms.values()) if alone.largest <= 1.0 else float("inf")
    return float("inf")


@given(problems())
@settings(max_examples=150, deadline=None)
def test_no_other_placement_is_better(problem: tuple[list[DnnLoad], dict[str, int]]) -> None:
    loads, memory = problem
    possible = all_placements(loads, memory)
    if not possible:
        with pytest.raises(PlacementError, match="do not fit the memory"):
            choose_placement(loads, memory)
        return
    chosen = choose_placement(loads, memory)
    assert fits(loads, dict(chosen.devices), memory)
    fewest = min(len(placement.late) for placement in possible)
    assert len(chosen.late) == fewest
    limit_ms = baseline_ms(loads, memory)
    candidates = [placement for placement in possible if len(placement.late) == fewest]
    fast = [placement for placement in candidates if max(placement.latency_ms.values()) <= limit_ms * (1 + 1e-9)]
    best = min(placement.largest for placement in fast or candidates)
    assert chosen.largest == pytest.approx(best)
    assert choose_placement(loads, memory) == chosen
    assert chosen.exact


@given(problems(dnns=8, devices=4))
@settings(max_examples=50, deadline=None)
def test_it_is_never_worse_than_all_dnns_on_the_first_device(problem: tuple[list[DnnLoad], dict[str, int]]) -> None:
    loads, memory = problem
    first = dict.fromkeys((load.dnn for load in loads), NAMES[0])
    assume(fits(loads, first, memory))
    chosen, alone = choose_placement(loads, memory), evaluate(loads, first, memory)
    assert (len(chosen.late), chosen.largest) <= (len(alone.late), alone.largest)


@given(problems(dnns=5, devices=4))
@settings(max_examples=200, deadline=None)
def test_no_dnn_is_predicted_slower_than_on_the_first_device_except_to_meet_deadlines(
    problem: tuple[list[DnnLoad], dict[str, int]],
) -> None:
    loads, memory = problem
    first = dict.fromkeys((load.dnn for load in loads), NAMES[0])
    assume(fits(loads, first, memory))
    alone = evaluate(loads, first, memory)
    assume(alone.largest <= 1.0)
    chosen = choose_placement(loads, memory)
    for dnn, ms in chosen.latency_ms.items():
        assert ms <= alone.latency_ms[dnn] * (1 + 1e-9) or len(chosen.late) < len(alone.late)


def test_a_lower_utilization_is_no_reason_to_be_slower_than_on_the_first_gpu() -> None:
    """With `a` on the CPU, no device would be used above 15 % instead of 20 %, but `a` would take 12 ms, not 10."""
    loads = [
        DnnLoad("a", 10.0, {"cuda:0": Cost(5.0), "cpu": Cost(12.0)}),
        DnnLoad("b", 30.0, {"cuda:0": Cost(5.0), "cpu": Cost(36.0)}),
    ]
    chosen = choose_placement(loads, {"cuda:0": 1, "cpu": 1})
    assert set(chosen.devices.values()) == {"cuda:0"}
    assert chosen.largest == pytest.approx(0.2)  # a on the CPU: 0.15
    crowded = [*loads, DnnLoad("c", 30.0, {"cuda:0": Cost(28.0)})]  # the GPU alone would need 104 %
    assert choose_placement(crowded, {"cuda:0": 1, "cpu": 1}).devices["a"] == "cpu"


def test_eight_dnns_on_four_equal_devices_are_placed_exactly_within_seconds() -> None:
    loads = [
        DnnLoad(f"dnn{number}", 30.0, {name: Cost(3.0 + number) for name in NAMES}, deadline_ms=100.0)
        for number in range(8)
    ]
    begin = time.monotonic()
    chosen = choose_placement(loads, dict.fromkeys(NAMES, 1))
    assert time.monotonic() - begin < 20.0  # 0.2 s on an idle core
    assert chosen.exact
    assert chosen.largest == pytest.approx(30 * 13e-3)  # 3 + 10, 4 + 9, 5 + 8, 6 + 7


def test_a_deadline_decides_before_the_utilization() -> None:
    slow, fast = Cost(10.0), Cost(12.0)
    loads = [
        DnnLoad("a", 50.0, {"cuda:0": slow, "cpu": fast}, deadline_ms=15.0),
        DnnLoad("b", 1.0, {"cuda:0": slow}),
    ]
    chosen = choose_placement(loads, {"cuda:0": 1, "cpu": 1})
    assert dict(chosen.devices) == {"a": "cpu", "b": "cuda:0"}
    assert not chosen.late
    assert chosen.largest == pytest.approx(0.6)  # both on cuda:0: 0.51, and a would be late


def test_errors_name_the_dnn_and_the_reason() -> None:
    with pytest.raises(PlacementError, match="DNN a can run on none of cpu: cpu: precision fp16 is not allowed"):
        choose_placement([DnnLoad("a", 1.0, {}, impossible={"cpu": "precision fp16 is not allowed"})], {"cpu": 1})
    with pytest.raises(PlacementError, match="a needs 2 MB on cpu; available: cpu 1 MB"):
        choose_placement([DnnLoad("a", 1.0, {"cpu": Cost(1.0, 2_000_000)})], {"cpu": 1_000_000})


def test_the_table_shows_figures_decision_and_alternatives() -> None:
    loads = [
        DnnLoad("lane", 30.0, {"cuda:0": Cost(2.0, 10**8), "cpu": Cost(20.0)}, 40.0),
        DnnLoad("object", 30.0, {"cuda:0": Cost(25.0, 10**8)}, impossible={"cpu": "precision fp16"}),
    ]
    memory = {"cuda:0": 10**9, "cpu": 10**9}
    lines = placement_table(loads, memory, choose_placement(loads, memory)).splitlines()
    assert " ".join(lines[1].split()) == "lane 30 40 ms 2.00, 100 MB, 6.0% 20.00, 0 MB, 60.0% cpu 20.0 ms"
    assert "object cannot run on cpu: precision fp16" in lines
    assert lines[-2:] == ["utilization: cuda:0 75.0%, cpu 60.0%", "all DNNs on cuda:0: 81.0%"]


def test_a_dnn_counts_with_its_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    flat = {"placement": "auto", "cameras": ["front", "rear"], "dnns": ["lane"], "camera.front.rate_hz": 4.0}
    config = to_config({**flat, "dnn.lane.max_rate_hz": 5.0, "dnn.lane.enable": False})  # it can be enabled
    caplog.set_level(logging.INFO)
    assert choose_devices(config, {"cpu": DeviceCosts({"lane": Cost(10.0)}, {}, 10**9)}) == {"lane": ("cpu",)}
    assert "utilization: cpu 9.0%" in caplog.text  # 4 and 5 Hz
