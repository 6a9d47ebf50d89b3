"""Supervision of simulated processes: which process serves which DNN after any order of events."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated_processes import DNNS, Simulation  # isort: skip

MODES = ("none", "warm", "hot")


def test_a_lost_process_is_replaced_at_once_after_fault_window_s_of_service() -> None:
    simulation = Simulation(dnns=("lane",))
    gaps = []
    for _ in range(3):
        simulation.wait(61)
        simulation.end(simulation.common, "killed by SIGKILL", "lane")
        begin = simulation.time_s
        simulation.wait(10)
        gaps.append(simulation.started[-1] - begin)
    assert gaps == [0, 0, 0], "each had served for the fault window"


def test_attempts_to_configure_are_repeated_with_growing_pauses() -> None:
    simulation = Simulation()
    simulation.wait(1)
    simulation.end(simulation.common, "killed by SIGKILL")
    attempts = []
    while len(attempts) < 7:
        (key,) = [key for key, state in simulation.state.items() if state == "starting"] or [None]
        if key is None:
            simulation.time_s += 0.5
            simulation.do(simulation.supervisor.tick())
            continue
        attempts.append(simulation.time_s)
        simulation.step(key)
        simulation.refuse(key)
        simulation.end(key)
    pauses = [after - before for before, after in pairwise(attempts)]
    assert pauses == [1.0, 5.0, 30.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize("standby", ["none", "warm", "hot"])
def test_supervision_is_steady_only_while_nothing_is_due(standby: str) -> None:
    simulation = Simulation(standby)
    assert simulation.supervisor.is_steady == (standby == "none")  # otherwise a standby is being prepared
    simulation.wait(61)
    assert simulation.supervisor.is_steady
    simulation.end(simulation.common, "killed by SIGKILL", "lane")
    assert not simulation.supervisor.is_steady
    simulation.wait(61)
    assert simulation.supervisor.is_steady
    simulation.do(simulation.supervisor.deactivate())
    assert not simulation.supervisor.is_steady, "it finishes its frames"


def test_a_hot_standby_takes_over_immediately_and_a_new_one_is_prepared() -> None:
    simulation = Simulation("hot")
    simulation.wait(5)
    standby = simulation.supervisor.standby.key
    assert standby is not None
    assert simulation.phase(standby).value == "configured"
    simulation.end(simulation.common, "killed by SIGKILL", "lane")
    assert simulation.common == standby
    simulation.wait(5)
    assert simulation.supervisor.standby.state_text() == "hot, ready"
    assert simulation.common == standby
    (level, text), *_ = [line for line in simulation.lines if "again after" in line[1]]
    assert level == logging.WARNING
    assert "restarts: 1" in text


def test_a_warm_standby_is_configured_in_place_of_a_new_process() -> None:
    simulation = Simulation("warm")
    simulation.wait(2)
    standby = simulation.supervisor.standby.key
    assert standby is not None
    simulation.end(simulation.common)
    assert simulation.state[standby] == "configuring"
    simulation.step(standby)
    assert simulation.common == standby


def test_a_standby_that_is_still_being_prepared_is_used() -> None:
    simulation = Simulation("hot")
    standby = simulation.supervisor.standby.key
    assert standby is not None
    simulation.step(standby)
    assert simulation.state[standby] == "configuring"
    simulation.end(simulation.common)
    assert len(simulation.started) == 1
    simulation.step(standby)
    assert simulation.common == standby


def test_a_standby_that_ends_while_taking_over_makes_no_dnn_suspected() -> None:
    simulation = Simulation("hot")
    simulation.wait(5)
    simulation.end(simulation.common, "killed by SIGKILL", "lane")
    simulation.end(simulation.common, "killed by SIGSTOP and SIGKILL")
    simulation.wait(20)
    assert simulation.common
    assert not any(group.isolated for group in simulation.supervisor.groups)


def test_a_standby_that_does_not_fit_into_memory_is_retried_after_a_pause() -> None:
    simulation = Simulation("hot")
    standby = simulation.supervisor.standby.key
    assert standby is not None
    simulation.step(standby)
    simulation.refuse(standby, out_of_memory=True)
    assert simulation.supervisor.standby.state_text() == "none at this moment: out of memory"
    simulation.wait(55)
    assert len(simulation.started) == 1
    simulation.wait(10)
    assert simulation.supervisor.standby.state_text() == "hot, ready"


@pytest.mark.parametrize("mode", MODES)
def test_the_dnn_at_fault_is_disabled_and_retried_and_the_others_are_merged(mode: str) -> None:
    simulation = Simulation(mode)
    simulation.wait(5)
    simulation.end(simulation.common, "killed by SIGSEGV", "lane", "object")
    simulation.wait(5)
    first = simulation.common
    simulation.end(first, "killed by SIGSEGV", "lane", "object")
    if mode == "hot":
        assert simulation.common, "the standby serves all DNNs until their own processes are ready"
    simulation.wait(5)
    keys = {dnn: simulation.serving(dnn) for dnn in DNNS}
    assert None not in keys.values()
    assert len(set(keys.values())) == 3
    lane = keys["lane"]
    assert lane is not None
    simulation.end(lane, "killed by SIGSEGV", "lane")
    assert "killed by SIGSEGV; next retry in 10 s" in simulation.disabled["lane"]
    assert simulation.serving("object") == keys["object"]
    assert simulation.serving("pedestrian") == keys["pedestrian"]
    disabled_at = simulation.time_s
    while simulation.serving("lane") is None:
        simulation.wait(0.5)
    assert 10 <= simulation.time_s - disabled_at < 11, "its process was configured during the pause"
    assert not simulation.disabled
    again = simulation.serving("lane")
    assert again is not None
    assert again != keys["lane"]
    simulation.end(again, "killed by SIGSEGV", "lane")
    assert "next retry in 60 s" in simulation.disabled["lane"]
    simulation.wait(55)
    assert simulation.serving("object") == simulation.serving("pedestrian"), "served for fault_window_s without a fault"
    simulation.wait(90)
    assert simulation.common, "lane served without a fault for fault_window_s, too"
    simulation.wait(5)
    assert (
        simulation.supervisor.standby.state_text()
        == {
            "none": "none (parameter standby)",
            "warm": "warm, ready",
            "hot": "hot, ready",
        }[mode]
    )
    assert len(simulation.state) == (1 if mode == "none" else 2)


def disabled_lane(faults: int) -> Simulation:
    """A simulation of two DNNs, where lane has just been disabled after this many faults of its separate process."""
    simulation = Simulation(dnns=DNNS[:2])
    for _ in range(2):
        simulation.wait(5)
        simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    for _ in range(faults):
        while simulation.serving("lane") is None:
            simulation.wait(0.5)
        key = simulation.serving("lane")
        assert key is not None
        simulation.step(key)
        simulation.end(key, "killed by SIGSEGV", "lane")
    assert set(simulation.disabled) == {"lane"}
    return simulation


@pytest.mark.parametrize(("faults", "pause_s", "begin_s"), [(1, 10, 0), (2, 60, 30), (3, 600, 570), (4, 600, 570)])
def test_the_process_of_a_disabled_dnn_is_prepared_before_its_retry(faults: int, pause_s: int, begin_s: int) -> None:
    simulation = disabled_lane(faults)
    disabled_at = simulation.time_s
    while simulation.serving("lane") is None:
        assert set(simulation.disabled) == {"lane"}
        simulation.wait(0.5)
    assert pause_s <= simulation.time_s - disabled_at <= pause_s + 0.5
    assert not simulation.disabled
    assert begin_s <= simulation.started[-1] - disabled_at <= begin_s + 0.5


def test_a_disabled_dnn_whose_process_cannot_be_configured_is_served_after_its_pause() -> None:
    simulation = disabled_lane(faults=2)
    disabled_at = simulation.time_s
    while "configuring" not in simulation.state.values():
        simulation.wait(0.5)
    (key,) = [key for key, state in simulation.state.items() if state == "configuring"]
    simulation.refuse(key, out_of_memory=True)
    assert simulation.supervisor.unserved_reason("lane") == (
        False,
        "no engine process serves the DNN at this moment (out of memory)",
    )
    while simulation.serving("lane") is None:
        simulation.wait(0.5)
    assert 60 <= simulation.time_s - disabled_at <= 60.5


def test_a_crash_while_the_process_of_a_disabled_dnn_is_configured_makes_its_pause_longer() -> None:
    simulation = disabled_lane(faults=1)
    disabled_at = simulation.time_s
    while "configuring" not in simulation.state.values():
        simulation.wait(0.5)
    (key,) = [key for key, state in simulation.state.items() if state == "configuring"]
    simulation.end(key, "killed by SIGILL")
    assert "killed by SIGILL; next retry in 60 s" in simulation.disabled["lane"]
    simulation.wait(59)
    assert simulation.serving("lane") is None
    simulation.wait(5)
    assert simulation.serving("lane") is not None
    assert simulation.time_s - disabled_at < 70


def test_without_a_running_job_all_dnns_are_suspected() -> None:
    simulation = Simulation()
    for _ in range(2):
        simulation.wait(5)
        simulation.end(simulation.common, "killed by SIGKILL")
    simulation.wait(5)
    assert len(set(simulation.supervisor.routes.values())) == 3
    assert len(simulation.supervisor.routes) == 3


def test_faults_further_apart_than_the_window_make_no_dnn_suspected() -> None:
    simulation = Simulation()
    for _ in range(5):
        simulation.end(simulation.common, "killed by SIGSEGV", "lane")
        simulation.wait(61)
    assert simulation.common


def test_a_single_dnn_is_disabled_at_the_second_fault() -> None:
    simulation = Simulation(dnns=("lane",))
    simulation.wait(5)
    simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    simulation.wait(5)
    simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    assert set(simulation.disabled) == {"lane"}
    simulation.wait(90)
    assert simulation.common
    assert not simulation.disabled


def test_merging_without_enough_memory_leaves_the_processes_unchanged() -> None:
    simulation = Simulation()
    for _ in range(2):
        simulation.wait(5)
        simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    simulation.wait(59)
    serving = dict(simulation.supervisor.routes)
    while simulation.supervisor.merging.key is None:
        simulation.wait(0.5)
    key = simulation.supervisor.merging.key
    while simulation.state[key] != "configuring":
        simulation.step(key)
    simulation.refuse(key, out_of_memory=True)
    simulation.end(key)
    assert simulation.supervisor.routes == serving
    simulation.wait(20)
    assert simulation.common, "retried"


def isolate(mode: str, *suspects: str) -> Simulation:
    """After two faults these DNNs are suspected; their own processes are not ready yet."""
    simulation = Simulation(mode)
    simulation.wait(5)
    for _ in range(2):
        simulation.step(simulation.common)
        simulation.end(simulation.common, "killed by SIGSEGV", *suspects)
        if (mode == "hot" and not any(group.isolated for group in simulation.supervisor.groups)) or mode == "none":
            simulation.wait(5)
    return simulation


def test_the_standby_serves_a_suspected_dnn_until_its_own_process_is_ready() -> None:
    simulation = isolate("hot", "lane", "object")
    common = simulation.common
    (lane,) = [group.replacement for group in simulation.supervisor.groups if group.dnns == ("lane",)]
    assert lane is not None
    while simulation.serving("lane") != lane:
        simulation.step(lane)
    for _ in range(140):
        simulation.time_s += 0.5
        simulation.do(simulation.supervisor.tick())
    assert simulation.serving("object") == common, "no DNN is merged while another one is being isolated"
    assert simulation.serving("pedestrian") == common
    assert simulation.serving("lane") == lane
    simulation.wait(130)
    assert simulation.common


def test_a_fault_cancels_merging() -> None:
    simulation = isolate("none", "lane", "object")
    while simulation.supervisor.merging.key is None:
        simulation.wait(0.5)
    merging = simulation.supervisor.merging.key
    lane = simulation.serving("lane")
    assert lane is not None
    simulation.end(lane, "killed by SIGSEGV", "lane")
    assert simulation.state[merging] == "killed"
    assert set(simulation.disabled) == {"lane"}
    simulation.wait(5)
    assert simulation.serving("object") not in (None, simulation.serving("pedestrian"))
    simulation.wait(200)
    assert simulation.common


def test_merging_while_inactive_leaves_one_process() -> None:
    simulation = isolate("none", "lane", "object")
    while simulation.supervisor.merging.key is None:
        simulation.wait(0.5)
    merging = simulation.supervisor.merging.key
    simulation.do(simulation.supervisor.deactivate())
    simulation.wait(10)
    assert list(simulation.state) == [merging]
    simulation.do(simulation.supervisor.activate())
    assert simulation.common == merging


def test_a_process_that_hangs_is_replaced_before_it_is_reaped() -> None:
    simulation = Simulation("hot")
    simulation.wait(5)
    hung, standby = simulation.common, simulation.supervisor.standby.key
    simulation.hang(hung, "lane")
    assert simulation.state[hung] == "killed"
    assert simulation.common == standby


def test_a_process_lost_while_inactive_is_replaced_for_the_next_start() -> None:
    simulation = Simulation()
    simulation.wait(5)
    key = simulation.common
    simulation.do(simulation.supervisor.deactivate())
    simulation.wait(1)
    assert simulation.state[key] == "configured"
    simulation.end(key, "killed by SIGKILL")
    simulation.wait(5)
    assert not simulation.supervisor.routes
    simulation.do(simulation.supervisor.activate())
    assert simulation.common != key


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "step",
                "step",
                "end",
                "hang",
                "refuse",
                "memory",
                "wait",
                "long",
                "toggle",
                "fault",
                "fault",
                "settle",
                "heal",
                "swap",
                "commit",
                "cancel",
            )
        ),
        st.integers(0, 5),
        st.sets(st.sampled_from(DNNS)),
    ),
    max_size=40,
)


@settings(max_examples=50)
@given(mode=st.sampled_from(MODES), count=st.integers(1, 3), events=EVENTS)
def test_any_order_of_events_leaves_every_dnn_served_or_disabled(mode: str, count: int, events: list) -> None:
    """Simulation.check() passes after each event; without further faults one process serves all DNNs in the end."""
    simulation = Simulation(mode, DNNS[:count])
    for kind, pick, dnns in events:
        keys = sorted(simulation.state)
        key = keys[pick % len(keys)] if keys else -1
        if kind == "wait":
            simulation.time_s += pick
            simulation.do(simulation.supervisor.tick())
        elif kind == "long":
            simulation.time_s += 30 * pick
            simulation.do(simulation.supervisor.tick())
        elif kind == "settle":
            simulation.wait(pick)
        elif kind == "heal":
            simulation.wait(55 + pick)
        elif kind == "fault":  # of a serving process
            serving = sorted(set(simulation.supervisor.routes.values()))
            if serving:
                key = serving[pick % len(serving)]
                simulation.step(key)
                simulation.end(
                    key, "killed by SIGSEGV", *[dnn for dnn in dnns if dnn in simulation.configured_for[key]]
                )
        elif kind == "swap":
            simulation.begin_swap(*(dnns & set(simulation.dnns) or simulation.dnns[:1]))
        elif kind == "commit":
            if simulation.supervisor.swapping.is_prepared:
                simulation.commit_swap()
        elif kind == "cancel":
            simulation.do(simulation.supervisor.cancel_swap("the test"))
        elif kind == "toggle":
            supervisor = simulation.supervisor
            busy = "finishing" in simulation.state.values()  # stop() waits for these
            if not busy:
                simulation.do(supervisor.deactivate() if supervisor.active else supervisor.activate())
        elif key in simulation.state:
            if kind == "step":
                simulation.step(key)
            elif kind == "end":
                running = [dnn for dnn in dnns if dnn in simulation.configured_for.get(key, ())]
                simulation.end(key, "killed by SIGSEGV", *running)
            elif kind == "hang":
                simulation.hang(key, *[dnn for dnn in dnns if dnn in simulation.configured_for.get(key, ())])
            else:
                simulation.refuse(key, out_of_memory=kind == "memory")
    simulation.do(simulation.supervisor.cancel_swap("the test"))
    if not simulation.supervisor.active:
        simulation.wait(5)
        simulation.do(simulation.supervisor.activate())
    simulation.wait(1500)
    assert simulation.common
    assert not simulation.disabled
    assert len(simulation.supervisor.groups) == 1
    assert len(simulation.state) == (1 if mode == "none" else 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", ["starting", "configuring", "serving"])
def test_a_process_that_always_fails_is_restarted_with_pauses(mode: str, phase: str) -> None:
    """Every process ends in the same phase, for ten minutes."""
    simulation = Simulation(mode)
    simulation.wait(1)
    simulation.end(simulation.common, "killed by SIGSEGV")
    begin = simulation.time_s
    while simulation.time_s - begin < 600:
        for key in list(simulation.state):
            if simulation.state.get(key) == phase:
                if phase == "serving":
                    simulation.step(key)
                simulation.end(key, "killed by SIGSEGV", *(["lane"] if phase == "serving" else []))
            elif key in simulation.state:
                simulation.step(key)
        simulation.time_s += 0.1
        simulation.do(simulation.supervisor.tick())
    assert len(simulation.started) < 90


def test_without_a_common_group_no_standby_is_configured() -> None:
    simulation = Simulation("hot", ("lane",))
    simulation.wait(5)
    simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    simulation.step(simulation.common)
    simulation.end(simulation.common, "killed by SIGSEGV", "lane")
    assert set(simulation.disabled) == {"lane"}
    standby = simulation.supervisor.standby.key
    assert standby is not None
    simulation.step(standby)
    assert simulation.state[standby] == "ready", "there is no process that it could replace"
    simulation.wait(90)
    assert simulation.supervisor.standby.state_text() == "hot, ready"
