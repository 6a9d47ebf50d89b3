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
BOTH = ("lane", "object")


class Bench:
    """A decoder of the camera `front` between a host and its ledger. With `gate`, decoding waits for permits.

    settings: by DNN, values of DnnSettings.
    """

    def __init__(
        self, dnns: tuple[str, ...] = ("object",), buffers: int = 8, gate: bool = False, **settings: Any
    ) -> None:
        self.clock, self.ends, self.host = FakeClock(), Ends(), FakeHost(buffers)
        of = {dnn: DnnSettings(("front",), **settings.get(dnn, {})) for dnn in dnns}
        wake: Callable[[str], None] = lambda camera: self.decoder.wake()  # noqa: E731
        self.ledger = Ledger(of, self.ends.callbacks(), self.clock, on_answered=wake)
        self.bad: list[FrameError] = []
        host: Any = self.host
        self.decoder = CameraDecoder("front", host, self.ledger, self.bad.append, self.clock)
        self.decoded: list[object] = []
        self.decoding = threading.Semaphore(0)
        self.permits = threading.Semaphore(0 if gate else 1000)
        self.decoder.start()

    def send(self, number: int, decode: Callable[[Allocate], npt.NDArray[np.uint8]] | None = None) -> None:
        """Send an image full of `number`, whose decoding takes 5 ms."""

        def fill(allocate: Allocate) -> npt.NDArray[np.uint8]:
            self.decoding.release()
            assert self.permits.acquire(timeout=WAIT_S)
            self.decoded.append(number)
            self.clock.now += 5 * MS
            image = allocate(2, 3)
            image[:] = number
            return image

        self.decoder.arrived(Frame("front", number, context=number), decode or fill)

    def send_while_decoding(self, *numbers: int) -> None:
        """Send the first image, and the others while it is being decoded."""
        self.send(numbers[0])
        assert self.decoding.acquire(timeout=WAIT_S)
        for number in numbers[1:]:
            self.clock.now += 1000 * MS
            self.send(number)


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def make_bench(**arguments: Any) -> Bench:
        benches.append(Bench(**arguments))
        return benches[-1]

    yield make_bench
    for bench in benches:
        bench.permits.release(1000)
        assert bench.decoder.close(WAIT_S)


def check(bench: Bench) -> None:
    """Every DNN has answered every arrived image, and every buffer is free."""
    for it in bench.ledger.statistics().values():
        assert (it.offered, it.pending) == (it.published + sum(it.dropped.values()), 0)
    with pytest.raises(ValueError, match="released too many times"):
        bench.host.free.release()


def test_an_image_is_decoded_once_for_all_dnns_that_want_it(make: Make) -> None:
    bench = make(dnns=(*BOTH, "pedestrian"), pedestrian={"enabled": False})
    received_ns = bench.clock.now
    bench.send(7)
    assert bench.host.wait_offered(1) == bench.decoded == [7]
    (_, frame), image = bench.host.offered[0], bench.host.offered[0][1].image
    assert (image.shape, int(image.min()), int(image.max())) == ((2, 3, 3), 7, 7)
    assert (frame.received_ns, frame.decode_ns) == (received_ns, 5 * MS)
    assert bench.host.recipients == [BOTH]
    for dnn in BOTH:
        bench.host.answer(dnn)
    assert bench.ends.lost() == [(7, "pedestrian", DropReason.SWITCHED_OFF)]
    check(bench)


def test_the_newest_image_that_arrived_during_a_decode_is_next(make: Make) -> None:
    bench = make(dnns=BOTH, gate=True)
    bench.send_while_decoding(1, 2, 3, 4)
    bench.permits.release(2)
    assert bench.host.wait_offered(2) == [1, 4]
    assert bench.ends.lost() == [(number, dnn, DropReason.OVERWRITTEN) for number in (2, 3) for dnn in BOTH]


def play_history(bench: Bench, service_ns: int, period_ns: int) -> None:
    """Play 4 frames: the DNN takes `service_ns`, images arrive every `period_ns`, the last frame stays in progress."""
    for number in range(4):
        bench.send(number)
        bench.host.wait_offered(number + 1)
        if number < 3:
            bench.clock.now += service_ns
            bench.host.answer("object", finished_ns=bench.clock.now)
            bench.clock.now += max(0, period_ns - service_ns)


def test_an_image_waits_undecoded_while_every_dnn_is_busy(make: Make) -> None:
    bench = make()
    play_history(bench, service_ns=100_000 * MS, period_ns=100_000 * MS)
    for _ in range(16):  # many periods pass before the DNN is idle
        bench.clock.now += 33 * MS
        bench.send(50)
    assert 50 not in bench.decoded
    assert {end[2] for end in bench.ends.lost()} == {DropReason.OVERWRITTEN}
    bench.host.answer("object", finished_ns=bench.clock.now)  # sooner than expected
    assert bench.host.wait_offered(5)[-1] == 50


def test_a_waiting_image_is_decoded_in_time_for_the_dnn(make: Make) -> None:
    """Neither an answer nor another image arrives: the timeout of the wait ends it."""
    bench = make()
    play_history(bench, service_ns=400 * MS, period_ns=33 * MS)
    bench.clock.now += 33 * MS
    bench.send(50)
    assert len(bench.host.offered) == 4
    bench.clock.now += 400 * MS
    assert bench.host.wait_offered(5)[-1] == 50


def test_without_a_free_buffer_newer_images_replace_the_waiting_one(make: Make) -> None:
    bench = make(buffers=1)
    bench.send(1)
    bench.host.wait_offered(1)
    for number in (2, 3):
        bench.send(number)
    assert bench.ends.lost() == [(2, "object", DropReason.OVERWRITTEN)]
    bench.host.answer("object")
    assert bench.host.wait_offered(2) == [1, 3]
    bench.host.answer("object")
    check(bench)


@pytest.mark.parametrize("error", [FrameError("step is 1"), ValueError("half a JPEG")])
def test_a_bad_image_is_reported_once_and_dropped_for_every_dnn(make: Make, error: Exception) -> None:
    bench = make(dnns=BOTH, buffers=1)

    def fail(allocate: Allocate) -> npt.NDArray[np.uint8]:
        allocate(2, 3)
        raise error

    bench.send(1, fail)
    bench.ends.wait(lambda: len(bench.ends.drops) == 2)
    bench.send(2)
    assert bench.host.wait_offered(1) == [2]
    assert bench.ends.lost() == [(1, dnn, DropReason.BAD_IMAGE) for dnn in BOTH]
    assert all(str(error) in text for text in (str(bench.bad[0]), *(drop.message for drop in bench.ends.drops)))
    assert len(bench.bad) == 1


@pytest.mark.parametrize("reason", [DropReason.DISABLED, DropReason.SWITCHED_OFF])
def test_an_image_that_waits_for_a_dnn_is_dropped_when_no_dnn_wants_it_any_more(make: Make, reason: DropReason) -> None:
    bench = make(gate=True)
    bench.send_while_decoding(1, 2)
    if reason is DropReason.DISABLED:
        bench.ledger.failure(Failure("object", "3 failures in a row", 3, disabled=True))
    else:
        bench.ledger.update("object", enabled=False)
    bench.decoder.wake()
    bench.permits.release(3)
    bench.ends.wait(lambda: bench.ends.drops)
    assert bench.ends.lost() == [(2, "object", reason)]
    assert bench.host.wait_offered(1) == bench.decoded == [1]
    bench.ledger.enable(("object",))
    bench.ledger.update("object", enabled=True)
    bench.send(3)
    assert bench.host.wait_offered(2) == bench.decoded == [1, 3]


def test_a_limited_dnn_gets_the_image_that_replaced_its_own(make: Make) -> None:
    bench = make(dnns=BOTH, gate=True, lane={"max_rate_hz": 1.0})
    bench.send_while_decoding(1, 2)  # both are for both
    bench.clock.now += 33 * MS
    bench.send(3)  # too early for lane, but it replaces its image
    bench.permits.release(2)
    assert bench.host.wait_offered(2) == [1, 3]
    assert bench.host.recipients == [BOTH] * 2
    assert bench.ends.lost() == [(2, dnn, DropReason.OVERWRITTEN) for dnn in BOTH]


def test_closing_offers_the_waiting_image(make: Make) -> None:
    bench = make(gate=True)
    bench.send_while_decoding(1, 2)
    bench.permits.release(2)
    assert bench.decoder.close(WAIT_S)
    assert bench.host.wait_offered(2) == [1, 2]


@pytest.mark.parametrize("obstacle", ["no engine", "no buffer", "decoding takes too long"])
def test_closing_drops_an_image_that_cannot_be_offered(make: Make, obstacle: str) -> None:
    bench = make(buffers=1, gate=obstacle == "decoding takes too long")
    if obstacle == "no engine":
        bench.host.serving = False
        bench.send(2)
    elif obstacle == "no buffer":
        bench.send(1)
        bench.host.wait_offered(1)
        bench.send(2)
    else:
        bench.send_while_decoding(1, 2)
    bench.decoder.close(0.1)
    assert bench.ends.lost() == [(2, "object", DropReason.SHUTDOWN)]
