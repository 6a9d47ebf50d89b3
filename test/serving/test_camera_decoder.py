"""The thread of a camera: which images it decodes, when, and how it counts the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_host import WAIT_S, Ends, FakeClock, FakeHost

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.camera_decoder import Allocate, CameraDecoder
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger

MS = 1_000_000


class Bench:
    """A decoder of the camera `front` between a host and its ledger. With `gate`, decoding waits for permits.

    settings: by DNN, values of DnnSettings.
    """

    def __init__(
        self,
        dnns: tuple[str, ...] = ("object",),
        buffers: int = 8,
        gate: bool = False,
        **settings: Any,
    ) -> None:
        self.clock, self.ends, self.host = FakeClock(), Ends(), FakeHost(buffers)
        self.ledger = Ledger(
            {dnn: DnnSettings(("front",), **settings.get(dnn, {})) for dnn in dnns},
            self.ends.callbacks(),
            self.clock,
            on_answered=lambda camera: self.decoder.wake(),
        )
        self.host.ledger = self.ledger
        self.bad: list[FrameError] = []
        self.on_bad_image: Callable[[FrameError], None] = self.bad.append
        self.decoder = CameraDecoder(
            "front",
            self.host,  # type: ignore[arg-type]
            self.ledger,
            lambda error: self.on_bad_image(error),
            self.clock,
        )
        self.decoded: list[object] = []
        self.decoding = threading.Semaphore(0)
        self.permits = threading.Semaphore(0 if gate else 1000)
        self.decoder.start()

    def send(self, number: int, decode: Callable[[Allocate], npt.NDArray[np.uint8]] | None = None) -> None:
        """Send an image full of `number`."""

        def fill(allocate: Allocate) -> npt.NDArray[np.uint8]:
            self.decoding.release()
            assert self.permits.acquire(timeout=WAIT_S)
            self.decoded.append(number)
            image = allocate(2, 3)
            image[:] = number
            return image

        self.decoder.arrived(Frame("front", number, context=number), decode or fill)

    def wait_decoding(self) -> None:
        assert self.decoding.acquire(timeout=WAIT_S)

    def check(self) -> None:
        """Every DNN has answered every arrived image, and every buffer is free."""
        for stream in self.ledger.statistics().by_dnn_and_camera.values():
            assert stream.offered == stream.published + sum(stream.dropped.values()) + stream.pending
            assert stream.pending == 0
        assert self.host.free == self.host.buffers


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make_bench(**arguments: object) -> Bench:
        benches.append(Bench(**arguments))  # type: ignore[arg-type]
        return benches[-1]

    yield make_bench
    for bench in benches:
        bench.permits.release(1000)
        assert bench.decoder.close(WAIT_S)


def test_an_image_is_decoded_once_for_all_dnns(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"))
    bench.send(7)
    assert bench.host.wait_offered(1) == [7]
    (_, frame), image = bench.host.offered[0], bench.host.offered[0][1].image()
    assert (image.shape, int(image.min()), int(image.max())) == ((2, 3, 3), 7, 7)
    assert frame.received_ns == bench.clock.now
    for dnn in ("lane", "object"):
        bench.host.answer(dnn)
    assert bench.decoded == [7]
    bench.check()


def test_decode_time_is_measured(make: Callable[..., Bench]) -> None:
    bench = make()

    def slow(allocate: Allocate) -> npt.NDArray[np.uint8]:
        bench.clock.now += 5 * MS
        return allocate(2, 3)

    bench.send(1, slow)
    bench.host.wait_offered(1)
    assert bench.host.offered[0][1].decode_ns == 5 * MS


def test_the_newest_image_that_arrived_during_a_decode_is_next(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), gate=True)
    bench.send(1)
    bench.wait_decoding()
    for number in (2, 3, 4):
        bench.send(number)
    bench.permits.release(2)
    assert bench.host.wait_offered(2) == [1, 4]
    assert bench.ends.lost() == [
        (number, dnn, DropReason.OVERWRITTEN) for number in (2, 3) for dnn in ("lane", "object")
    ]


def play_history(bench: Bench, service_ns: int, period_ns: int) -> None:
    """Play 4 frames: the DNN takes `service_ns`, images arrive every `period_ns`, the last frame stays in progress."""
    for number in range(4):
        bench.send(number)
        bench.host.wait_offered(number + 1)
        if number < 3:
            bench.clock.now += service_ns
            bench.host.answer("object", finished_ns=bench.clock.now)
            bench.clock.now += max(0, period_ns - service_ns)


def test_an_image_waits_undecoded_while_every_dnn_is_busy(make: Callable[..., Bench]) -> None:
    bench = make()
    play_history(bench, service_ns=100_000 * MS, period_ns=100_000 * MS)
    for _ in range(16):  # many periods pass before the DNN is idle
        bench.clock.now += 33 * MS
        bench.send(50)
    assert 50 not in bench.decoded
    assert {end[2] for end in bench.ends.lost()} == {DropReason.OVERWRITTEN}
    bench.host.answer("object", finished_ns=bench.clock.now)  # sooner than expected
    assert bench.host.wait_offered(5)[-1] == 50


def test_a_waiting_image_is_decoded_in_time_for_the_dnn(make: Callable[..., Bench]) -> None:
    """Neither an answer nor another image arrives: the timeout of the wait ends it."""
    bench = make()
    play_history(bench, service_ns=400 * MS, period_ns=33 * MS)
    bench.clock.now += 33 * MS
    bench.send(50)
    with bench.host.changed:
        assert len(bench.host.offered) == 4
    bench.clock.now += 400 * MS
    assert bench.host.wait_offered(5)[-1] == 50


def test_without_a_free_buffer_newer_images_replace_the_waiting_one(make: Callable[..., Bench]) -> None:
    bench = make(buffers=1)
    bench.send(1)
    bench.host.wait_offered(1)
    for number in (2, 3):
        bench.send(number)
    assert bench.ends.lost() == [(2, "object", DropReason.OVERWRITTEN)]
    bench.host.answer("object")
    assert bench.host.wait_offered(2) == [1, 3]
    bench.host.answer("object")
    bench.check()


@pytest.mark.parametrize("error", [FrameError("step is 1"), ValueError("half a JPEG")])
def test_a_bad_image_is_reported_once_and_dropped_for_every_dnn(make: Callable[..., Bench], error: Exception) -> None:
    bench = make(dnns=("lane", "object"), buffers=1)

    def fail(allocate: Allocate) -> npt.NDArray[np.uint8]:
        allocate(2, 3)
        raise error

    bench.send(1, fail)
    bench.ends.wait(lambda: len(bench.ends.drops) == 2)
    bench.send(2)
    bench.host.wait_offered(1)
    assert bench.ends.lost() == [(1, dnn, DropReason.BAD_IMAGE) for dnn in ("lane", "object")]
    (reported,) = bench.bad
    assert str(error) in str(reported)
    assert all(str(error) in drop.message for drop in bench.ends.drops)
    assert bench.host.stamps() == [2]


def test_images_for_disabled_dnns_are_counted_and_not_decoded(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ledger.failure(Failure("object", "3 failures in a row", 3, disabled=True))
    bench.send(1)
    bench.ends.wait(lambda: bench.ends.drops)
    assert bench.ends.lost() == [(1, "object", DropReason.DISABLED)]
    assert "3 failures" in bench.ends.drops[0].message
    bench.ledger.enable(("object",))
    bench.send(2)
    assert bench.host.wait_offered(1) == [2]
    assert bench.decoded == [2]


def test_closing_offers_the_waiting_image(make: Callable[..., Bench]) -> None:
    bench = make(gate=True)
    bench.send(1)
    bench.wait_decoding()
    bench.send(2)
    bench.permits.release(2)
    assert bench.decoder.close(WAIT_S)
    assert bench.host.stamps() == [1, 2]
    for index in (0, 1):
        bench.host.answer("object", index)
    bench.check()


@pytest.mark.parametrize("obstacle", ["no engine", "no buffer"])
def test_closing_drops_an_image_that_cannot_be_offered(make: Callable[..., Bench], obstacle: str) -> None:
    bench = make(buffers=1)
    if obstacle == "no engine":
        bench.host.serving = False
    else:
        bench.send(1)
        bench.host.wait_offered(1)
    bench.send(2)
    bench.decoder.close(0.1)
    assert bench.ends.lost() == [(2, "object", DropReason.SHUTDOWN)]
    if obstacle == "no buffer":
        bench.host.answer("object")
    bench.check()
    assert bench.decoder.close(WAIT_S)


def test_images_that_no_dnn_wants_are_not_decoded(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), lane={"enabled": False}, object={"enabled": False})
    bench.send(1)
    assert bench.ends.lost() == [(1, dnn, DropReason.SWITCHED_OFF) for dnn in ("lane", "object")]
    assert bench.decoded == []
    bench.check()


def test_an_image_is_handed_only_to_the_dnns_that_want_it(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), lane={"enabled": False})
    bench.send(1)
    assert bench.host.wait_offered(1) == [1]
    assert bench.host.recipients == [("object",)]
    bench.host.answer("object")
    assert bench.ends.lost() == [(1, "lane", DropReason.SWITCHED_OFF)]
    bench.check()


def test_a_limited_dnn_gets_the_image_that_replaced_its_own(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), gate=True, lane={"max_rate_hz": 1.0})
    bench.send(1)  # the first is for both
    bench.wait_decoding()
    bench.clock.now += 1000 * MS
    bench.send(2)  # for both
    bench.clock.now += 33 * MS
    bench.send(3)  # too early for lane, but it replaces its image
    bench.permits.release(2)
    assert bench.host.wait_offered(2) == [1, 3]
    assert bench.host.recipients == [("lane", "object")] * 2
    assert bench.ends.lost() == [(2, dnn, DropReason.OVERWRITTEN) for dnn in ("lane", "object")]


def test_disabling_drops_the_image_that_waits_for_the_dnn(make: Callable[..., Bench]) -> None:
    bench = make(gate=True)
    bench.send(1)
    bench.wait_decoding()
    bench.send(2)
    bench.ledger.update("object", enabled=False)
    bench.decoder.wake()
    bench.permits.release(2)
    bench.ends.wait(lambda: bench.ends.drops)
    assert bench.ends.lost() == [(2, "object", DropReason.SWITCHED_OFF)]
    assert bench.host.wait_offered(1) == [1]
    bench.host.answer("object")
    bench.check()
