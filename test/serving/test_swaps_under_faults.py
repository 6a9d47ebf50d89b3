"""Swaps with real engine processes and cameras, under faults: accounts, order and leftover processes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import swap_pipelines
from engine_faults import engine_pids
from fake_pipelines import settings
from host_rig import HostRig
from host_traffic import HostTraffic

from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.serving.swap import Swap, SwapPhase


class _Traffic(HostTraffic):
    """published: (number of the image, class index) in the order of publication, by stream."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.published: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def _on_result(self, result: Result) -> None:
        entries = self.published.setdefault((result.dnn, result.frame.camera), [])
        entries.append((result.frame.context, int(result.output.class_ids[0])))
        super()._on_result(result)


class _Rig(HostRig):
    traffic: _Traffic

    def _new_traffic(self) -> _Traffic:
        return _Traffic(self.host, self.description, self.rates, self._picture, self.config.stop_timeout_s)

    def swap(self, **models: str) -> Swap:
        return self.host.swap({dnn: {"model": model} for dnn, model in models.items()}, lambda: None)

    def committed(self, swap: Swap) -> bool:
        """Commit the swap once its preparation has ended. Returns whether that was possible."""
        self.until(lambda: swap.state().phase is not SwapPhase.PREPARING, "the preparation")
        return swap.commit()

    def classes(self, dnn: str) -> list[int]:
        return [index for (name, _), found in self.traffic.published.items() if name == dnn for _, index in found]

    def check_order(self) -> None:
        for published in self.traffic.published.values():
            numbers = [number for number, _ in published]
            assert numbers == sorted(set(numbers))


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it may just have ended by itself
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def rig() -> Iterator[_Rig]:
    created = _Rig(
        settings("object", "pedestrian", cameras=("front", "rear"), fault_window_s=1.0, heartbeat_timeout_s=5.0),
        swap_pipelines.build,
    )
    created.start()
    yield created
    created.close()


def test_frames_of_the_former_process_are_finished_and_no_frame_is_lost(rig: _Rig) -> None:
    for index in (1, 2, 3, 4):
        assert rig.committed(rig.swap(object=f"{index},slow" if index % 2 else str(index)))
        rig.until(lambda index=index: rig.classes("object")[-1] == index, "the new model")
        rig.wait_results()
    rig.traffic.stop()
    rig.check_order()
    for (dnn, camera), figures in rig.traffic.streams().items():
        lost = {reason.value: count for reason, count in figures.dropped.items() if count}
        assert set(lost) <= {"overwritten"}, f"{dnn} on {camera}"
    for found in (rig.traffic.published["object", camera] for camera in ("front", "rear")):
        classes = [index for _, index in found]
        assert classes == sorted(classes), "no result of a previous model after one of a later model"
    assert set(rig.classes("pedestrian")) == {0}


def test_stopping_right_after_a_swap_finishes_the_frames_of_the_former_process(rig: _Rig) -> None:
    assert rig.committed(rig.swap(object="1,slow"))
    rig.until(lambda: rig.classes("object")[-1] == 1, "the slow model")
    rig.wait_results()
    assert rig.committed(rig.swap(object="2"))
    assert rig.traffic.stop() == []
    for (dnn, camera), figures in rig.traffic.streams().items():
        lost = {reason.value: count for reason, count in figures.dropped.items() if count}
        assert set(lost) <= {"overwritten"}, f"{dnn} on {camera}"
    rig.check_order()


def test_a_swap_that_was_cancelled_or_replaced_cannot_be_committed(rig: _Rig) -> None:
    first = rig.swap(object="1")
    second = rig.swap(object="2,wrong")
    rig.until(lambda: second.state().phase is SwapPhase.FAILED, "the failure")
    assert "not a model of this test" in second.state().failure
    assert not first.commit()
    assert not second.commit()
    third = rig.swap(object="3,long")
    third.cancel("the test")
    assert not third.commit()
    rig.until(lambda: len(engine_pids()) == 1, "the end of the new processes")
    assert set(rig.classes("object")) == {0}
    fourth = rig.swap(object="4")
    rig.until(lambda: fourth.state().phase is SwapPhase.PREPARED, "the preparation")
    third.cancel("it has been replaced")
    assert third.state().phase is SwapPhase.FAILED
    assert not third.commit()
    assert fourth.commit()
    rig.until(lambda: rig.classes("object")[-1] == 4, "the new model")


def test_closing_the_host_ends_the_new_process(rig: _Rig) -> None:
    rig.swap(object="1,long")
    rig.until(lambda: len(engine_pids()) == 2, "the new process")
    rig.traffic.stop()
    rig.host.close()
    assert engine_pids() == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_accounts_are_exact_with_random_swaps_and_kills(rig: _Rig, seed: int) -> None:
    """Processes are killed while they are prepared, while they serve, and just after they have taken over.

    The first seed is in every test run; the others only add further cases.
    """
    rng = random.Random(seed)
    for index in range(1, 7):
        word = rng.choice(["", ",slow", ",abort", ",wrong", ",brief"])
        dnns = rng.choice([("object",), ("pedestrian",), ("object", "pedestrian")])
        swap = rig.swap(**dict.fromkeys(dnns, f"{index}{word}"))
        victim = rng.choice(["none", "any", "any", "after"])
        if victim == "any":
            _kill(rng.choice(engine_pids()))
        committed = rig.committed(swap)
        if victim == "after":
            _kill(rng.choice(engine_pids()))
        assert not committed or word not in (",abort", ",wrong")
        rig.wait_results()
        for dnn in dnns:
            if committed:  # results of the previous process's remaining frames come first
                rig.until(lambda dnn=dnn, index=index: rig.classes(dnn)[-1] == index, "the new model")
            else:
                assert index not in rig.classes(dnn)
    rig.traffic.stop()
    rig.check_order()
    assert not rig.traffic.discrepancies()
