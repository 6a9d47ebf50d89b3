"""The order of the results of a DNN with several devices, for any order of results, drops and losses."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.device_outcomes import DeviceOutcomes, MultiDeviceDnns
from multi_dnn_ros.serving.frame_dispatcher import FrameDispatcher
from multi_dnn_ros.serving.result_order import ResultOrder

MS = 1_000_000
DNN_CAMERA = "object", "front"
DEVICES = ("cpu:1", "cpu:2")


class _Buffer:
    def release(self) -> None:
        pass


class _Bench:
    """published, dropped: contexts of frames of the DNN `object`."""

    def __init__(self, hold_ms: float = 60_000.0) -> None:
        self.published: list[Any] = []
        self.dropped: dict[Any, DropReason] = {}
        self.failures: list[Failure] = []
        self.accounts = Accounts(
            {"object": ("front",)},
            Callbacks(self._on_result, self._on_drop, self.failures.append),
            time.monotonic_ns,
        )
        self.order = ResultOrder(self.accounts, round(hold_ms * MS))
        self.dispatcher = FrameDispatcher({"object": DEVICES}, {}, 100 * MS)
        multi_device = MultiDeviceDnns({"object": DEVICES}, self.dispatcher, self.order)
        self.outcomes = {device: DeviceOutcomes(device, self.accounts, multi_device) for device in DEVICES}
        self.device: dict[int, str] = {}

    def _on_result(self, result: Result) -> None:
        self.published.append(result.frame.context)

    def _on_drop(self, drop: Drop) -> None:
        self.dropped[drop.frame.context] = drop.reason

    def offer(self, context: int) -> int:
        self.accounts.arrived("front")
        frame = Frame("front", context, np.zeros((1, 1, 3), np.uint8), context)
        number = self.accounts.open(frame, _Buffer(), ["object"])
        self.device[number] = self.dispatcher.choose("object", "front", number, DEVICES)
        self.order.expect(number, "object", "front")
        return number

    def result(self, number: int) -> None:
        now = time.monotonic_ns()
        self.outcomes[self.device[number]].result(number, "object", None, Timing(now, now, now, 0, 0, 0, 0))

    def drop(self, number: int, reason: DropReason = DropReason.ENGINE_LOST) -> None:
        self.outcomes[self.device[number]].drop(number, "object", reason, "lost")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_results_leave_in_order_and_every_frame_is_counted_once(data: st.DataObject) -> None:
    bench = _Bench()
    count = data.draw(st.integers(1, 12))
    numbers = [bench.offer(context) for context in range(count)]
    answers = data.draw(st.permutations(numbers))
    lost = data.draw(st.sets(st.sampled_from(numbers)))
    answered = set()
    for number in answers:
        bench.drop(number) if number in lost else bench.result(number)
        bench.result(number)  # repeated and late answers change nothing
        bench.drop(number)
        answered.add(number)
        first_missing = next((context for context, each in enumerate(numbers) if each not in answered), count)
        assert bench.published == [context for context in range(first_missing) if numbers[context] not in lost]
    bench.order.close()
    assert bench.published == [context for context, number in enumerate(numbers) if number not in lost]
    assert set(bench.dropped) == {context for context, number in enumerate(numbers) if number in lost}
    figures = bench.accounts.statistics().by_dnn_and_camera[DNN_CAMERA]
    assert figures.offered == count == figures.published + sum(figures.dropped.values())


def test_a_frame_that_others_have_waited_for_too_long_is_dropped_and_its_result_ignored() -> None:
    bench = _Bench(hold_ms=30.0)
    numbers = [bench.offer(context) for context in range(3)]
    bench.result(numbers[1])
    bench.result(numbers[2])
    assert bench.published == []
    until(lambda: bench.published == [1, 2], "the other results")
    assert bench.dropped == {0: DropReason.OUT_OF_ORDER}
    bench.result(numbers[0])
    assert bench.published == [1, 2]
    assert bench.accounts.wait_idle(0)
    bench.order.close()


def test_closing_publishes_what_waits_in_order() -> None:
    bench = _Bench()
    numbers = [bench.offer(context) for context in range(4)]
    bench.result(numbers[3])
    bench.result(numbers[1])
    bench.order.close()
    assert bench.published == [1, 3]
    # The others are left to the host, which counts them as shutdown.
    assert bench.accounts.drop_unanswered(["object"], DropReason.SHUTDOWN, "") == 2


def test_two_threads_do_not_change_the_order() -> None:
    bench = _Bench()
    numbers = [bench.offer(context) for context in range(400)]
    threads = [threading.Thread(target=lambda part=part: [bench.result(n) for n in part]) for part in
               (numbers[::2], numbers[1::2])]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.published == list(range(400))
    bench.order.close()


def test_a_dnn_is_disabled_only_when_it_is_disabled_on_all_devices() -> None:
    bench = _Bench()
    bench.outcomes["cpu:1"].failure(Failure("object", "raises", 5, True, retry_s=10.0))
    assert not bench.accounts.statistics().disabled
    assert {bench.device[bench.offer(context)] for context in range(4)} == {"cpu:2"}
    bench.outcomes["cpu:2"].failure(Failure("object", "raises too", 5, True, retry_s=20.0))
    assert bench.accounts.statistics().disabled == {"object": "raises too"}
    assert bench.failures[-1].retry_s == pytest.approx(10.0, abs=1.0)
    bench.outcomes["cpu:1"].enabled("object")
    assert not bench.accounts.statistics().disabled
    assert bench.device[bench.offer(9)] == "cpu:1"
    bench.order.close()


# -- the choice of the device, with a fake clock


class _Clock:
    now_ns = 1_000 * MS

    def __call__(self) -> int:
        return self.now_ns


def _dispatcher(clock: _Clock, fast_ms: float, slow_ms: float, allowance_ms: float = 100.0) -> FrameDispatcher:
    service = {("object", "fast"): fast_ms, ("object", "slow"): slow_ms}
    return FrameDispatcher({"object": ("slow", "fast")}, service, round(allowance_ms * MS), clock)


def test_an_idle_slower_device_is_used_once_the_faster_one_is_busy_for_longer() -> None:
    clock = _Clock()
    dispatcher = _dispatcher(clock, 10.0, 15.0)
    assert dispatcher.choose("object", "front", 1, ("slow", "fast")) == "fast"  # 10 ms against 15
    assert dispatcher.choose("object", "front", 2, ("slow", "fast")) == "slow"  # 10 + 10 against 15
    clock.now_ns += 6 * MS
    dispatcher.answered(1, "object", "fast", None)
    assert dispatcher.choose("object", "front", 3, ("slow", "fast")) == "fast"


def test_a_much_slower_device_gets_no_frames_that_would_be_late() -> None:
    clock = _Clock()
    dispatcher = _dispatcher(clock, 5.0, 500.0)
    assert {dispatcher.choose("object", "front", number, ("slow", "fast")) for number in range(6)} == {"fast"}
    patient = _dispatcher(clock, 5.0, 500.0, allowance_ms=1000.0)
    assert "slow" in {patient.choose("object", "front", number, ("slow", "fast")) for number in range(6)}


def test_a_device_that_does_not_answer_gets_no_more_frames() -> None:
    clock = _Clock()
    dispatcher = _dispatcher(clock, 10.0, 15.0)
    assert dispatcher.choose("object", "front", 1, ("slow", "fast")) == "fast"
    clock.now_ns += 200 * MS
    for number in range(2, 10):
        assert dispatcher.choose("object", "front", number, ("slow", "fast")) == "slow"
        dispatcher.answered(number, "object", "slow", None)
