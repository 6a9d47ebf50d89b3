"""Accounts: every DNN answers every arrived frame exactly once, and its buffer is released afterwards."""

from __future__ import annotations

import random

import pytest
from fake_host import Ends, FakeClock, FakeHost
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.accounts import Accounts

TIMING = Timing(0, 0, 0, 0, 0, 0, 0)
STREAMS = {"lane": ("front",), "object": ("front", "rear")}
Answered = tuple[str, str, int, "Timing | None"]


class Bench:
    def __init__(self) -> None:
        self.clock, self.ends, self.host = FakeClock(), Ends(), FakeHost()
        self.answered: list[Answered] = []
        self.accounts = Accounts(
            STREAMS,
            self.ends.callbacks(),
            self.clock,
            on_answered=lambda dnn, camera, handed_ns, timing: self.answered.append((dnn, camera, handed_ns, timing)),
        )

    def open(self, camera: str = "front", dnns: tuple[str, ...] = ("lane", "object")) -> int:
        self.accounts.arrived(camera)
        buffer = self.host.buffer(camera, 0)
        assert buffer is not None
        return self.accounts.open(Frame(camera, 0, context=camera), buffer, dnns)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_handed_ns_belongs_to_the_oldest_unanswered_frame(bench: Bench) -> None:
    stream = ("object", "front")
    assert bench.accounts.handed_ns(stream) is None
    first = bench.open()
    began = bench.clock.now
    bench.clock.now += 7
    second = bench.open()
    assert bench.accounts.handed_ns(stream) == began
    assert bench.accounts.handed_ns(("object", "rear")) is None
    bench.accounts.drop(first, "lane", DropReason.DNN_ERROR, "")
    assert bench.accounts.handed_ns(stream) == began
    bench.accounts.result(first, "object", None, TIMING)
    assert bench.accounts.handed_ns(stream) == began + 7
    bench.accounts.drop(second, "object", DropReason.OVERWRITTEN, "")
    assert bench.accounts.handed_ns(stream) is None


def test_on_answered_is_called_once_before_the_callback(bench: Bench) -> None:
    answered_before: list[bool] = []
    bench.accounts._callbacks = Callbacks(
        lambda result: answered_before.append(len(bench.answered) == 1), lambda drop: None, lambda failure: None
    )
    number = bench.open()
    bench.clock.now += 5
    for _ in range(2):
        bench.accounts.result(number, "object", None, TIMING)
    assert answered_before == [True]
    bench.accounts.drop(number, "lane", DropReason.ENGINE_LOST, "")
    assert bench.answered == [
        ("object", "front", bench.clock.now - 5, TIMING), ("lane", "front", bench.clock.now - 5, None)
    ]  # fmt: skip


def test_drops_of_a_disabled_dnn_have_the_reason_disabled(bench: Bench) -> None:
    bench.accounts.failure(Failure("lane", "poisoned", 3, True, "disabled after 3 failures in a row"))
    assert bench.accounts.enabled_dnns("front") == ("object",)
    for reason in (DropReason.OVERWRITTEN, DropReason.BAD_IMAGE):
        bench.accounts.arrived("front")
        bench.accounts.lost(Frame("front", 0), reason, "", STREAMS)
    assert bench.ends.lost() == [
        (None, "lane", DropReason.DISABLED),
        (None, "object", DropReason.OVERWRITTEN),
        (None, "lane", DropReason.BAD_IMAGE),
        (None, "object", DropReason.BAD_IMAGE),
    ]
    assert bench.accounts.statistics().disabled == {"lane": "disabled after 3 failures in a row"}
    bench.accounts.enabled("lane")
    assert bench.accounts.enabled_dnns("front") == ("lane", "object")


def test_a_disabled_dnn_accepts_frames_at_its_retry(bench: Bench) -> None:
    bench.accounts.failure(Failure("lane", "poisoned", 3, True, "disabled", retry_s=10.0))
    bench.clock.now += 9_999_000_000
    assert bench.accounts.enabled_dnns("front") == ("object",)
    assert set(bench.accounts.statistics().disabled) == {"lane"}
    bench.clock.now += 1_000_000
    assert bench.accounts.statistics().disabled == {}
    assert bench.accounts.enabled_dnns("front") == ("lane", "object")
    bench.accounts.arrived("front")
    bench.accounts.lost(Frame("front", 0), DropReason.OVERWRITTEN, "", STREAMS)
    assert {reason for _, _, reason in bench.ends.lost()} == {DropReason.OVERWRITTEN}


def test_a_buffer_is_held_until_the_last_callback_has_returned(bench: Bench) -> None:
    free: list[int] = []
    bench.accounts._callbacks = Callbacks(
        lambda result: free.append(bench.host.free), lambda drop: free.append(bench.host.free), lambda failure: None
    )
    number = bench.open()
    bench.accounts.result(number, "object", None, TIMING)
    bench.accounts.drop(number, "lane", DropReason.DNN_ERROR, "")
    assert free == [bench.host.buffers - 1] * 2
    assert bench.host.free == bench.host.buffers


@given(seed=st.integers(0, 10_000))
def test_every_arrived_frame_is_answered_exactly_once(seed: int) -> None:
    """Results, drops, lost engines, and repeated or late answers, in any order."""
    bench, chance = Bench(), random.Random(seed)
    numbers: list[tuple[int, str]] = []
    for _ in range(60):
        camera = chance.choice(("front", "rear"))
        dnns = bench.accounts.dnns_of(camera)
        action = chance.random()
        if action < 0.3 and bench.host.free:
            numbers.append((bench.open(camera, dnns), camera))
        elif action < 0.4:
            bench.accounts.arrived(camera)
            bench.accounts.lost(Frame(camera, 0), DropReason.OVERWRITTEN, "", dnns)
        elif action < 0.45:
            bench.accounts.drop_unanswered([chance.choice(("lane", "object"))], DropReason.ENGINE_LOST, "")
        elif numbers:
            number, camera = chance.choice(numbers)
            dnn = chance.choice(("lane", "object"))
            if chance.random() < 0.7:
                bench.accounts.result(number, dnn, None, TIMING)
            else:
                bench.accounts.drop(number, dnn, DropReason.OVERWRITTEN, "")
    bench.accounts.drop_unanswered(("lane", "object"), DropReason.SHUTDOWN, "")
    assert bench.accounts.wait_idle(0)
    published = dropped = 0
    for stream in bench.accounts.statistics().by_dnn_and_camera.values():
        assert stream.offered == stream.published + sum(stream.dropped.values())
        published, dropped = published + stream.published, dropped + sum(stream.dropped.values())
    assert (published, dropped) == (len(bench.ends.results), len(bench.ends.drops))
    assert bench.host.free == bench.host.buffers
