"""Host with real engine processes and cameras: configuring, serving, losses and swaps."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import fake_pipelines
import pytest
import swap_pipelines
from engine_faults import engine_pids
from fake_pipelines import BUSY, GPU_FAULT, RAISE, SEGFAULT, settings
from host_rig import HostRig, descriptors
from waiting import until

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.descriptions import Cancelled, ConfigureError, Level
from multi_dnn_ros.serving.groups import Swap
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.shared_memory import slots_needed

Make = Callable[..., HostRig]


@pytest.fixture
def make() -> Iterator[Make]:
    rigs: list[HostRig] = []

    def make_rig(*dnns: str, **arguments: Any) -> HostRig:
        keys = ("build", "pauses_s")
        rig_arguments = {key: arguments.pop(key) for key in keys if key in arguments}
        config = settings(*(dnns or ("lane", "object")), **{"fault_window_s": 1.0, **arguments})
        rigs.append(HostRig(config, **rig_arguments))
        return rigs[-1]

    yield make_rig
    for rig in rigs:
        rig.close()


# -- configuring


@pytest.mark.parametrize(
    ("build", "words", "expected"),
    [
        (fake_pipelines.build_wrong, "parameter dnn.object.model is 'nothing'\nand another line", True),
        (fake_pipelines.build_broken, "KeyError: 'broken'", False),
        (fake_pipelines.build_with_unsendable_labels, "cannot pickle '_thread.lock' object", False),
        (fake_pipelines.build_crashing, "the engine process ended while configuring: killed by SIGABRT", True),
    ],
)
def test_a_failed_configure_reports_the_reason_and_frees_everything(build: Any, words: str, expected: bool) -> None:
    host, before = Host(build), descriptors()
    for isolation in ("process", "none")[: 1 if build is fake_pipelines.build_crashing else 2]:
        with pytest.raises(ConfigureError) as caught:
            host.configure(settings("object", isolation=isolation), lambda progress: None)
        assert words in caught.value.text
        assert caught.value.expected is expected
        assert not engine_pids()
        assert host.statuses() == []
    until(lambda: descriptors() <= before, "the descriptors of the engine in this process")
    host.close()


@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_configuring_can_be_cancelled(end: str, isolation: str) -> None:
    host, begun = Host(fake_pipelines.build_slowly), threading.Event()
    timer = threading.Thread(target=lambda: (begun.wait(), getattr(host, end)()))
    timer.start()
    with pytest.raises(Cancelled):
        host.configure(settings("object", isolation=isolation), lambda progress: begun.set())
    timer.join()
    assert not engine_pids()
    host.close()


# -- serving


def test_an_engine_serves_again_after_a_stop(make: Make) -> None:
    rig = make()
    assert {"DNN 1 of 2: lane ready", "DNN 2 of 2: object ready"} <= set(rig.progress)
    assert (rig.description.device, rig.description.dnns["object"].cameras) == ("cpu", ("front",))
    assert [(it.name, it.level, it.text) for it in rig.host.statuses()] == [("engine cpu", Level.OK, "ready")]
    rig.start()
    pid = rig.pid()
    assert pid in engine_pids()
    assert (rig.status().level, rig.status().text) == (Level.OK, "serving")
    assert rig.host.memory()["engine processes resident memory (bytes)"] > 10_000_000
    for _ in range(2):
        ledger, frame = rig.traffic.ledger, Frame("front", 0)
        assert rig.traffic.stop() == []
        assert rig.traffic.discrepancies() == []
        assert not any(figures.dropped.get(DropReason.ENGINE_LOST) for figures in rig.traffic.streams().values())
        buffer = rig.host.buffer("front", 0.0)
        assert buffer is not None
        rig.host.offer(ledger, frame, buffer, ledger.arrived(frame))  # an image whose decoding took too long
        assert rig.traffic.seen.counted["lane", "front"]["shutdown"] == 1
        rig.restart()
        assert rig.pid() == pid


def test_frames_that_raise_are_counted_and_runtime_parameters_reach_the_engine(make: Make) -> None:
    rig = make("object", "mask").start()
    rig.once["front"] = RAISE
    rig.until(lambda: rig.traffic.streams()["object", "front"].dropped[DropReason.DNN_ERROR], "the error")
    assert any("this image raises" in drop.message for drop in rig.traffic.drops)
    assert {failure.consecutive for failure in rig.traffic.seen.failures} == {1}

    def newest(dnn: str) -> Any:
        return rig.traffic.published[dnn, "front"][-1][1]

    rig.until(lambda: len(newest("object")) == 1, "a box")
    assert (newest("mask").mask == 200).all()
    rig.host.update("object", "score_threshold", 0.99)
    rig.until(lambda: len(newest("object")) == 0, "the new threshold")
    rig.host.update("object", "max_age_ms", 1e-6)
    rig.until(lambda: rig.traffic.streams()["object", "front"].dropped[DropReason.TOO_OLD], "the new age")


def test_an_engine_in_this_process(make: Make) -> None:
    rig = make("object", "mask", isolation="none").start()
    rig.host.update("object", "max_age_ms", 0.001)
    rig.until(lambda: rig.traffic.streams()["object", "front"].dropped.get(DropReason.TOO_OLD), "an old frame")
    rig.host.update("object", "max_age_ms", 0.0)
    assert rig.traffic.stop() == []
    rig.restart()
    assert (rig.status().level, rig.status().text) == (Level.OK, "serving")
    rig.once["front"] = GPU_FAULT
    rig.until(lambda: "illegal memory access" in str(rig.status().values.get("last loss")), "the fault")


# -- losses


@pytest.mark.parametrize("standby", ["none", pytest.param("warm", marks=pytest.mark.long), "hot"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP, GPU_FAULT, BUSY, SEGFAULT])
def test_a_process_is_replaced_after_each_kind_of_fault(make: Make, standby: str, fault: int) -> None:
    words = {
        signal.SIGKILL: "killed by SIGKILL",
        signal.SIGSTOP: "no heartbeat",
        GPU_FAULT: "illegal memory access",
        BUSY: "takes longer than 0.5 s (parameter job_timeout_s)",
        SEGFAULT: "killed by SIGSEGV",
    }[fault]
    limits = {BUSY: {"job_timeout_s": 0.5}, signal.SIGSTOP: {"heartbeat_timeout_s": 0.5}}.get(fault, {})
    rig = make(standby=standby, fault_window_s=30.0, build=fake_pipelines.build_ending_slowly, **limits).start()
    if standby != "none":
        rig.until(lambda: rig.status().values["standby"] == f"{standby}, ready", "the standby")
    pid = rig.pid()
    if isinstance(fault, signal.Signals):
        os.kill(pid, fault)
    else:
        rig.once["front"] = fault
    rig.until(lambda: rig.host.update("object", "priority", 1) or rig.pid() not in (0, pid), "another process")
    rig.wait_results()
    rig.until(lambda: rig.status().values["gap (ms)"] != "ongoing", "the gap")
    assert words in rig.status().text
    assert (rig.status().level, rig.status().values["restarts"]) == (Level.WARN, 1)
    found = max(rig.traffic.gap_ms("lane"), rig.traffic.gap_ms("object"))
    assert 0.0 <= float(str(rig.status().values["gap (ms)"])) <= found
    dropped = [drop for drop in rig.traffic.drops if drop.dnn == "lane" and words in drop.message]
    lost = [drop for drop in dropped if not drop.message.startswith("no engine process serves the DNN")]
    assert len(lost) <= slots_needed(2), "no more than can be in progress"


def test_only_the_dnn_at_fault_is_disabled_and_tried_again() -> None:
    """While the images contain the fault, every process that serves `faulty` is lost."""
    config = settings("faulty", "lane", "object", standby="hot", fault_window_s=60.0)
    rig = HostRig(config, fake_pipelines.build_with_one_faulty, pauses_s=(0.0, 2.0, 3.0))

    def lost(dnn: str) -> int:
        return rig.traffic.streams()[dnn, "front"].dropped.get(DropReason.ENGINE_LOST, 0)

    try:
        rig.start()
        rig.values["front"] = SEGFAULT
        rig.until(lambda: rig.traffic.ledger.disabled(), "faulty to be disabled", 180)
        assert {failure.dnn for failure in rig.traffic.seen.failures if failure.disabled} == {"faulty"}
        rig.wait_results("lane", "object", count=10)
        before, losses = {dnn: lost(dnn) for dnn in ("lane", "object")}, len(rig.traffic.seen.failures)
        rig.until(lambda: len(rig.traffic.seen.failures) > losses, "the retry to fail", 120)
        assert rig.traffic.streams()["faulty", "front"].dropped[DropReason.DISABLED] > 0
        assert {dnn: lost(dnn) for dnn in ("lane", "object")} == before, "retries do not affect the other DNNs"
        rig.values["front"] = 200
        rig.wait_results("faulty")
        assert not rig.traffic.ledger.disabled()
        assert len(rig.host.statuses()) == 3, "each keeps its process"
    finally:
        rig.close()


# -- swaps


@pytest.fixture
def rig() -> Iterator[HostRig]:
    limits = {"fault_window_s": 1.0, "heartbeat_timeout_s": 5.0}
    created = HostRig(settings("object", "pedestrian", cameras=("front", "rear"), **limits), swap_pipelines.build)
    created.start()
    yield created
    created.close()


def swap(rig: HostRig, *dnns: str, model: str) -> Swap:
    return rig.host.swap({dnn: {"model": model} for dnn in dnns}, lambda: None)


def committed(rig: HostRig, swap: Swap) -> bool:
    """Commit the swap once its preparation has ended. Returns whether that was possible."""
    rig.until(lambda: swap.is_prepared or swap.failure, "the preparation")
    return swap.commit()


def classes(rig: HostRig, dnn: str, camera: str = "front") -> list[int]:
    """Class indices in the order of publication."""
    return [int(output.class_ids[0]) for _, output in rig.traffic.published[dnn, camera]]


def check_order(rig: HostRig) -> None:
    for published in rig.traffic.published.values():
        numbers = [number for number, _ in published]
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_accounts_are_exact_with_random_swaps_and_kills(rig: HostRig, seed: int) -> None:
    """Processes are killed while they are prepared, while they serve, and just after they have taken over."""
    rng = random.Random(seed)

    def kill_any() -> None:
        with suppress(ProcessLookupError):  # it may just have ended by itself
            os.kill(rng.choice(engine_pids()), signal.SIGKILL)

    for index in range(1, 7):
        word = rng.choice(["", ",slow", ",abort", ",wrong", ",brief"])
        dnns = rng.choice([("object",), ("pedestrian",), ("object", "pedestrian")])
        begun = swap(rig, *dnns, model=f"{index}{word}")
        victim = rng.choice(["none", "any", "any", "after"])
        if victim == "any":
            kill_any()
        done = committed(rig, begun)
        if victim == "after":
            kill_any()
        assert not done or word not in (",abort", ",wrong")
        rig.wait_results()
        for dnn in dnns:
            if done:  # results of the previous process's remaining frames come first
                rig.until(lambda dnn=dnn, index=index: classes(rig, dnn)[-1] == index, "the new model")
            else:
                assert index not in classes(rig, dnn)
    rig.traffic.stop()
    check_order(rig)
