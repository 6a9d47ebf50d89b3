"""Supervision of simulated processes: which one serves which DNN after any order of events."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_world import DNNS, World  # isort: skip

MODES = ("none", "warm", "hot")


def test_a_lost_process_is_replaced_at_once_after_fault_window_s_of_service() -> None:
    world = World(dnns=("lane",))
    gaps = []
    for _ in range(3):
        world.wait(61)
        world.end(world.common, "killed by SIGKILL", "lane")
        begin = world.time_s
        world.wait(10)
        gaps.append(world.started[-1] - begin)
    assert gaps == [0, 0, 0], "each had served for the fault window"


def test_attempts_to_configure_are_repeated_with_growing_pauses() -> None:
    world = World()
    world.wait(1)
    world.end(world.common, "killed by SIGKILL")
    tries = []
    while len(tries) < 7:
        (key,) = [key for key, state in world.state.items() if state == "starting"] or [None]
        if key is None:
            world.time_s += 0.5
            world.do(world.supervisor.tick())
            continue
        tries.append(world.time_s)
        world.step(key)
        world.refuse(key)
        world.end(key)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [1.0, 5.0, 30.0, 60.0, 60.0, 60.0]


def test_a_hot_standby_takes_over_immediately_and_a_new_one_is_prepared() -> None:
    world = World("hot")
    world.wait(5)
    standby = world.supervisor.standby.key
    assert standby is not None
    assert world.phase(standby).value == "configured"
    world.end(world.common, "killed by SIGKILL", "lane")
    assert world.common == standby
    world.wait(5)
    assert world.supervisor.standby.state_text() == "hot, ready"
    assert world.common == standby
    (level, text), *_ = [line for line in world.lines if "again after" in line[1]]
    assert level == logging.WARNING
    assert "restarts: 1" in text


def test_a_warm_standby_is_configured_in_place_of_a_new_process() -> None:
    world = World("warm")
    world.wait(2)
    standby = world.supervisor.standby.key
    assert standby is not None
    world.end(world.common)
    assert world.state[standby] == "configuring"
    world.step(standby)
    assert world.common == standby


def test_a_standby_that_is_still_being_prepared_is_used() -> None:
    world = World("hot")
    standby = world.supervisor.standby.key
    assert standby is not None
    world.step(standby)
    assert world.state[standby] == "configuring"
    world.end(world.common)
    assert len(world.started) == 1
    world.step(standby)
    assert world.common == standby


def test_a_standby_that_ends_while_taking_over_makes_no_dnn_suspected() -> None:
    world = World("hot")
    world.wait(5)
    world.end(world.common, "killed by SIGKILL", "lane")
    world.end(world.common, "killed by SIGSTOP and SIGKILL")
    world.wait(20)
    assert world.common
    assert not any(group.isolated for group in world.supervisor.groups)


def test_a_standby_that_does_not_fit_into_memory_is_retried_after_a_pause() -> None:
    world = World("hot")
    standby = world.supervisor.standby.key
    assert standby is not None
    world.step(standby)
    world.refuse(standby, out_of_memory=True)
    assert world.supervisor.standby.state_text() == "none at this moment: out of memory"
    world.wait(55)
    assert len(world.started) == 1
    world.wait(10)
    assert world.supervisor.standby.state_text() == "hot, ready"


@pytest.mark.parametrize("mode", MODES)
def test_the_dnn_at_fault_is_disabled_and_retried_and_the_others_are_merged(mode: str) -> None:
    world = World(mode)
    world.wait(5)
    world.end(world.common, "killed by SIGSEGV", "lane", "object")
    world.wait(5)
    first = world.common
    world.end(first, "killed by SIGSEGV", "lane", "object")
    if mode == "hot":
        assert world.common, "the standby serves all DNNs until their own processes are ready"
    world.wait(5)
    keys = {dnn: world.serving(dnn) for dnn in DNNS}
    assert None not in keys.values()
    assert len(set(keys.values())) == 3
    lane = keys["lane"]
    assert lane is not None
    world.end(lane, "killed by SIGSEGV", "lane")
    assert "killed by SIGSEGV; next retry in 10 s" in world.disabled["lane"]
    assert world.serving("object") == keys["object"]
    assert world.serving("pedestrian") == keys["pedestrian"]
    disabled_at = world.time_s
    while world.serving("lane") is None:
        world.wait(0.5)
    assert 10 <= world.time_s - disabled_at < 13
    assert not world.disabled
    again = world.serving("lane")
    assert again is not None
    assert again != keys["lane"]
    world.end(again, "killed by SIGSEGV", "lane")
    assert "next retry in 60 s" in world.disabled["lane"]
    world.wait(55)
    assert world.serving("object") == world.serving("pedestrian"), "served for fault_window_s without a fault"
    world.wait(90)
    assert world.common, "lane served without a fault for fault_window_s, too"
    world.wait(5)
    assert (
        world.supervisor.standby.state_text()
        == {
            "none": "none (parameter standby)",
            "warm": "warm, ready",
            "hot": "hot, ready",
        }[mode]
    )
    assert len(world.state) == (1 if mode == "none" else 2)


def test_without_a_running_job_all_dnns_are_suspected() -> None:
    world = World()
    for _ in range(2):
        world.wait(5)
        world.end(world.common, "killed by SIGKILL")
    world.wait(5)
    assert len(set(world.supervisor.routes.values())) == 3
    assert len(world.supervisor.routes) == 3


def test_faults_further_apart_than_the_window_make_no_dnn_suspected() -> None:
    world = World()
    for _ in range(5):
        world.end(world.common, "killed by SIGSEGV", "lane")
        world.wait(61)
    assert world.common


def test_a_single_dnn_is_disabled_at_the_second_fault() -> None:
    world = World(dnns=("lane",))
    world.wait(5)
    world.end(world.common, "killed by SIGSEGV", "lane")
    world.wait(5)
    world.end(world.common, "killed by SIGSEGV", "lane")
    assert set(world.disabled) == {"lane"}
    world.wait(90)
    assert world.common
    assert not world.disabled


def test_merging_without_enough_memory_leaves_the_processes_unchanged() -> None:
    world = World()
    for _ in range(2):
        world.wait(5)
        world.end(world.common, "killed by SIGSEGV", "lane")
    world.wait(59)
    serving = dict(world.supervisor.routes)
    while world.supervisor.merging.key is None:
        world.wait(0.5)
    key = world.supervisor.merging.key
    while world.state[key] != "configuring":
        world.step(key)
    world.refuse(key, out_of_memory=True)
    world.end(key)
    assert world.supervisor.routes == serving
    world.wait(20)
    assert world.common, "retried"


def isolate(mode: str, *suspects: str) -> World:
    """After two faults these DNNs are suspected; their own processes are not ready yet."""
    world = World(mode)
    world.wait(5)
    for _ in range(2):
        world.step(world.common)
        world.end(world.common, "killed by SIGSEGV", *suspects)
        if (mode == "hot" and not any(group.isolated for group in world.supervisor.groups)) or mode == "none":
            world.wait(5)
    return world


def test_the_standby_serves_a_suspected_dnn_until_its_own_process_is_ready() -> None:
    world = isolate("hot", "lane", "object")
    common = world.common
    (lane,) = [group.replacement for group in world.supervisor.groups if group.dnns == ("lane",)]
    assert lane is not None
    while world.serving("lane") != lane:
        world.step(lane)
    for _ in range(140):
        world.time_s += 0.5
        world.do(world.supervisor.tick())
    assert world.serving("object") == common, "no DNN is merged while another one is being isolated"
    assert world.serving("pedestrian") == common
    assert world.serving("lane") == lane
    world.wait(130)
    assert world.common


def test_a_fault_cancels_merging() -> None:
    world = isolate("none", "lane", "object")
    while world.supervisor.merging.key is None:
        world.wait(0.5)
    merging = world.supervisor.merging.key
    lane = world.serving("lane")
    assert lane is not None
    world.end(lane, "killed by SIGSEGV", "lane")
    assert world.state[merging] == "killed"
    assert set(world.disabled) == {"lane"}
    world.wait(5)
    assert world.serving("object") not in (None, world.serving("pedestrian"))
    world.wait(200)
    assert world.common


def test_merging_while_inactive_leaves_one_process() -> None:
    world = isolate("none", "lane", "object")
    while world.supervisor.merging.key is None:
        world.wait(0.5)
    merging = world.supervisor.merging.key
    world.do(world.supervisor.deactivate())
    world.wait(10)
    assert list(world.state) == [merging]
    world.do(world.supervisor.activate())
    assert world.common == merging


def test_a_process_that_hangs_is_replaced_before_it_is_reaped() -> None:
    world = World("hot")
    world.wait(5)
    hung, standby = world.common, world.supervisor.standby.key
    world.hang(hung, "lane")
    assert world.state[hung] == "killed"
    assert world.common == standby


def test_a_process_lost_while_inactive_is_replaced_for_the_next_start() -> None:
    world = World()
    world.wait(5)
    key = world.common
    world.do(world.supervisor.deactivate())
    world.wait(1)
    assert world.state[key] == "configured"
    world.end(key, "killed by SIGKILL")
    world.wait(5)
    assert not world.supervisor.routes
    world.do(world.supervisor.activate())
    assert world.common != key


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
            )
        ),
        st.integers(0, 5),
        st.sets(st.sampled_from(DNNS)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(mode=st.sampled_from(MODES), count=st.integers(1, 3), events=EVENTS)
def test_any_order_of_events_leaves_every_dnn_served_or_disabled(mode: str, count: int, events: list) -> None:
    """World.check() passes after each event; without further faults one process serves all DNNs in the end."""
    world = World(mode, DNNS[:count])
    for kind, pick, dnns in events:
        keys = sorted(world.state)
        key = keys[pick % len(keys)] if keys else -1
        if kind == "wait":
            world.time_s += pick
            world.do(world.supervisor.tick())
        elif kind == "long":
            world.time_s += 30 * pick
            world.do(world.supervisor.tick())
        elif kind == "settle":
            world.wait(pick)
        elif kind == "heal":
            world.wait(55 + pick)
        elif kind == "fault":  # of a serving process
            serving = sorted(set(world.supervisor.routes.values()))
            if serving:
                key = serving[pick % len(serving)]
                world.step(key)
                world.end(key, "killed by SIGSEGV", *[dnn for dnn in dnns if dnn in world.configured_for[key]])
        elif kind == "toggle":
            supervisor = world.supervisor
            busy = "finishing" in world.state.values()  # stop() waits for these
            if not busy:
                world.do(supervisor.deactivate() if supervisor.active else supervisor.activate())
        elif key in world.state:
            if kind == "step":
                world.step(key)
            elif kind == "end":
                running = [dnn for dnn in dnns if dnn in world.configured_for.get(key, ())]
                world.end(key, "killed by SIGSEGV", *running)
            elif kind == "hang":
                world.hang(key, *[dnn for dnn in dnns if dnn in world.configured_for.get(key, ())])
            else:
                world.refuse(key, out_of_memory=kind == "memory")
    if not world.supervisor.active:
        world.wait(5)
        world.do(world.supervisor.activate())
    world.wait(1500)
    assert world.common
    assert not world.disabled
    assert len(world.supervisor.groups) == 1
    assert len(world.state) == (1 if mode == "none" else 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", ["starting", "configuring", "serving"])
def test_a_process_that_always_fails_is_restarted_with_pauses(mode: str, phase: str) -> None:
    """Every process ends in the same phase, for ten minutes."""
    world = World(mode)
    world.wait(1)
    world.end(world.common, "killed by SIGSEGV")
    begin = world.time_s
    while world.time_s - begin < 600:
        for key in list(world.state):
            if world.state.get(key) == phase:
                if phase == "serving":
                    world.step(key)
                world.end(key, "killed by SIGSEGV", *(["lane"] if phase == "serving" else []))
            elif key in world.state:
                world.step(key)
        world.time_s += 0.1
        world.do(world.supervisor.tick())
    assert len(world.started) < 90


def test_without_a_common_group_no_standby_is_configured() -> None:
    world = World("hot", ("lane",))
    world.wait(5)
    world.end(world.common, "killed by SIGSEGV", "lane")
    world.step(world.common)
    world.end(world.common, "killed by SIGSEGV", "lane")
    assert set(world.disabled) == {"lane"}
    standby = world.supervisor.standby.key
    assert standby is not None
    world.step(standby)
    assert world.state[standby] == "ready", "there is no process that it could replace"
    world.wait(90)
    assert world.supervisor.standby.state_text() == "hot, ready"
