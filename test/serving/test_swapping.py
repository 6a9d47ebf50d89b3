"""Swaps of settings with simulated processes: which process serves which DNN with which settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_pipelines import settings

from multi_dnn_ros.serving.device_swap import DeviceSwap

from simulated_processes import DNNS, Simulation  # isort: skip


def prepare(simulation: Simulation, *dnns: str) -> int:
    """Begin a swap and finish its preparation. Returns the key of the only new process."""
    simulation.begin_swap(*dnns)
    (key,) = simulation.supervisor.swapping.keys
    while not simulation.supervisor.swapping.is_prepared:
        simulation.step(key)
    return key


@pytest.mark.parametrize("mode", ["none", "warm", "hot"])
def test_the_new_process_takes_over_and_the_standby_gets_the_new_settings(mode: str) -> None:
    simulation = Simulation(mode)
    simulation.wait(5)
    previous = simulation.common
    key = prepare(simulation, "object")
    assert simulation.common == previous, "until the commit"
    assert sum(state in ("configuring", "configured", "serving") for state in simulation.state.values()) == 2
    simulation.commit_swap()
    assert simulation.common == key
    assert simulation.state[previous] == "finishing"
    simulation.wait(5)
    assert previous not in simulation.state
    if mode != "none":
        assert simulation.supervisor.standby.state_text() == f"{mode}, ready"
    simulation.end(simulation.common, "killed by SIGKILL", "lane")
    simulation.wait(5)
    assert simulation.common not in (previous, key)


def test_a_warm_standby_becomes_the_new_process() -> None:
    simulation = Simulation("warm")
    simulation.wait(2)
    standby = simulation.supervisor.standby.key
    assert prepare(simulation, "object") == standby
    assert len(simulation.started) == 1


@pytest.mark.parametrize("how", ["end", "hang", "refuse"])
def test_a_new_process_that_is_lost_leaves_the_former_one(how: str) -> None:
    simulation = Simulation()
    simulation.wait(5)
    previous = simulation.common
    simulation.begin_swap("object")
    (key,) = simulation.supervisor.swapping.keys
    simulation.step(key)
    getattr(simulation, how)(key)
    lost = "the new engine process was lost: "
    reasons = {"end": f"{lost}killed by SIGSEGV", "hang": f"{lost}no heartbeat", "refuse": "no such file"}
    assert simulation.supervisor.swapping.failure == reasons[how]
    assert not simulation.supervisor.swapping.is_active
    simulation.wait(5)
    assert simulation.common == previous
    assert list(simulation.state) == [previous]


def test_a_loss_after_the_preparation_is_reported() -> None:
    """This holds until the swap is committed, because the other devices may take minutes."""
    simulation = Simulation()
    simulation.wait(5)
    executor: Any = SimpleNamespace(config=settings(*DNNS), runtime={}, swap_config=None, on_gap=None)
    swap = DeviceSwap(simulation.supervisor, executor, simulation.do)
    found: list[tuple[bool, str]] = []
    simulation.changed = {"object"}
    swap.begin(
        {"object": {"model": "builtin:lane"}}, lambda: found.append((swap.is_prepared, swap.failure)), lambda *gap: None
    )
    swap.check()
    assert found == []
    (key,) = simulation.supervisor.swapping.keys
    while not swap.is_prepared:
        simulation.step(key)
        swap.check()
    swap.check()
    assert found == [(True, "")]
    simulation.end(key, "killed by SIGKILL")
    swap.check()
    assert found[1:] == [(False, "the new engine process was lost: killed by SIGKILL")]
    swap.cancel("the test")
    swap.check()
    assert len(found) == 2


def test_a_loss_of_the_former_process_does_not_end_the_swap() -> None:
    simulation = Simulation()
    simulation.wait(5)
    simulation.begin_swap("object")
    (key,) = simulation.supervisor.swapping.keys
    simulation.end(simulation.common, "killed by SIGKILL", "lane")
    assert not simulation.supervisor.routes
    while not simulation.supervisor.swapping.is_prepared:
        simulation.step(key)
    simulation.commit_swap()
    assert simulation.common == key
    simulation.wait(5)
    assert list(simulation.state) == [key], "the process that was to replace the previous one is not needed"


def test_dnns_that_are_divided_after_faults_end_the_swap() -> None:
    simulation = Simulation()
    for _ in range(2):
        simulation.wait(5)
        simulation.begin_swap("object")
        simulation.end(simulation.common, "killed by SIGSEGV", "lane", "object")
    assert "divided among processes" in simulation.supervisor.swapping.failure
    assert not simulation.supervisor.swapping.is_active


def test_only_the_process_of_a_separated_dnn_is_replaced_and_it_is_merged_with_its_new_settings() -> None:
    simulation = Simulation("hot")
    for _ in range(2):
        simulation.wait(5)
        simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    simulation.wait(5)
    common, lane = simulation.serving("object"), simulation.serving("lane")
    assert common != lane
    key = prepare(simulation, "lane")
    simulation.commit_swap()
    assert (simulation.serving("lane"), simulation.serving("object")) == (key, common)
    simulation.wait(200)
    assert simulation.common, "merged; Simulation.check has compared the settings"


def test_a_disabled_dnn_is_tried_at_once_with_new_settings() -> None:
    simulation = Simulation(dnns=DNNS[:1])
    for _ in range(2):
        simulation.wait(5)
        simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    assert set(simulation.disabled) == {"lane"}
    key = prepare(simulation, "lane")
    simulation.commit_swap()
    assert simulation.common == key
    assert not simulation.disabled
    simulation.end(key, "exit code 1")  # before it computed anything, so the DNN is not at fault
    lost_at = simulation.time_s
    while simulation.serving("lane") is None:
        simulation.wait(0.5)
    assert simulation.time_s - lost_at <= 3, "not only when the pause of the previous settings would have ended"


def test_a_swap_while_inactive_is_served_after_the_activation() -> None:
    simulation = Simulation()
    simulation.wait(5)
    previous = simulation.common
    simulation.do(simulation.supervisor.deactivate())
    simulation.wait(1)
    key = prepare(simulation, "object", "lane")
    simulation.commit_swap()
    simulation.wait(1)
    assert previous not in simulation.state
    simulation.do(simulation.supervisor.activate())
    assert simulation.common == key


def test_a_later_swap_replaces_the_one_under_way() -> None:
    simulation = Simulation()
    simulation.wait(5)
    first = prepare(simulation, "object")
    second = prepare(simulation, "object", "lane")
    assert simulation.state[first] == "killed"
    simulation.commit_swap()
    assert simulation.common == second


def test_the_next_swap_takes_over_after_the_end_of_the_former_process() -> None:
    """Results of the second process may still wait for those of the first one."""
    simulation = Simulation()
    simulation.wait(5)
    first = simulation.common
    second = prepare(simulation, "object")
    simulation.commit_swap()
    simulation.begin_swap("object")
    (third,) = simulation.supervisor.swapping.keys
    while simulation.state[third] != "configured":
        simulation.step(third)
    assert simulation.state[first] == "finishing"
    assert not simulation.supervisor.swapping.is_prepared
    simulation.step(first)
    assert simulation.state[first] == "killed"
    assert not simulation.supervisor.swapping.is_prepared
    simulation.step(first)
    assert first not in simulation.state
    assert simulation.common == second
    simulation.commit_swap()
    assert simulation.common == third


def test_merging_waits_for_the_swap() -> None:
    simulation = Simulation()
    for _ in range(2):
        simulation.wait(5)
        simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    while simulation.supervisor.merging.key is None:
        simulation.wait(0.5)
    merging = simulation.supervisor.merging.key
    prepare(simulation, "lane")
    assert simulation.state[merging] == "killed"
    simulation.wait(100)
    assert simulation.supervisor.merging.key is None
    simulation.commit_swap()
    simulation.wait(200)
    assert simulation.common
