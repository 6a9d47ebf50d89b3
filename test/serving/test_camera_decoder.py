"""The thread of a camera: which images it decodes, when, and how it counts the others."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from fake_host import WAIT_S, Ends, FakeClock, FakeHost

from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Result, Timing
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.admission import Admission
from multi_dnn_ros.serving.camera_decoder import Allocate, CameraDecoder
from multi_dnn_ros.serving.slots import Slot, SlotLayout, SlotPool, slots_needed

MS = 1_000_000


class Bench:
    """A decoder of the camera `front` between a host and its accounts. With `gate`, decoding waits for permits."""

    def __init__(
        self,
        dnns: tuple[str, ...] = ("object",),
        buffers: int = 8,
        gate: bool = False,
        admission: Admission | None = None,
    ) -> None:
        self.clock, self.ends, self.host = FakeClock(), Ends(), FakeHost(buffers)
        self.accounts = Accounts(
            dict.fromkeys(dnns, ("front",)),
            self.ends.callbacks(),
            self.clock,
            on_answered=lambda dnn, camera, handed_ns, timing: self.decoder.answered(dnn, handed_ns, timing),
        )
        self.host.accounts = self.accounts
        self.bad: list[FrameError] = []
        self.on_bad_image: Callable[[FrameError], None] = self.bad.append
        self.decoder = CameraDecoder(
            "front",
            self.host,  # type: ignore[arg-type]
            self.accounts,
            lambda error: self.on_bad_image(error),
            self.clock,
            admission,
        )
        self.decoded: list[object] = []
        self.threads: list[threading.Thread] = []  # that decoded them
        self.decoding = threading.Semaphore(0)
        self.permits = threading.Semaphore(0 if gate else 1000)
        self.decoder.start()

    def send(
        self, number: int, decode: Callable[[Allocate], npt.NDArray[np.uint8]] | None = None, quick: bool = False
    ) -> None:
        """Send an image full of `number`."""

        def fill(allocate: Allocate) -> npt.NDArray[np.uint8]:
            self.threads.append(threading.current_thread())
            self.decoding.release()
            assert self.permits.acquire(timeout=WAIT_S)
            self.decoded.append(number)
            image = allocate(2, 3)
            image[:] = number
            return image

        self.decoder.arrived(Frame("front", number, context=number), decode or fill, quick=quick)

    def wait_idle(self) -> None:
        """Wait until the decoder's thread waits for an image."""
        end = time.monotonic() + WAIT_S
        while not self.decoder._idle:
            assert time.monotonic() < end
            time.sleep(0.001)

    def wait_decoding(self) -> None:
        assert self.decoding.acquire(timeout=WAIT_S)

    def check(self) -> None:
        """Every DNN has answered every arrived image, and every buffer is free."""
        for stream in self.accounts.statistics().by_dnn_and_camera.values():
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


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts context switches in /proc")
def test_answers_do_not_wake_the_thread_without_an_image(make: Callable[..., Bench]) -> None:
    bench = make()
    status = Path(f"/proc/self/task/{bench.decoder.native_id}/status")

    def sleeps() -> int:
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    bench.send(1)
    assert bench.host.wait_offered(1) == [1]
    bench.host.answer("object")
    deadline = time.monotonic() + WAIT_S
    before = sleeps()
    while True:  # until the thread waits for the next image
        time.sleep(0.01)
        now = sleeps()
        if now == before:
            break
        before = now
        assert time.monotonic() < deadline
    for _ in range(50):
        bench.decoder.answered("object", bench.clock.now, None)
        time.sleep(0.001)  # a woken thread gets to run
    assert sleeps() - before < 5
    bench.send(2)
    assert bench.host.wait_offered(2) == [1, 2]
    bench.host.answer("object")
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
    bench.decoder._decode_timing.due_ns = lambda dnn, arrived_ns, handed_ns: 0  # type: ignore[method-assign]
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


def test_a_raising_callback_has_no_other_effect(make: Callable[..., Bench]) -> None:
    bench = make()

    raised: list[FrameError] = []

    def raises(error: FrameError) -> None:
        raised.append(error)
        raise KeyError("front")

    def fail(allocate: Allocate) -> npt.NDArray[np.uint8]:
        raise FrameError("no image")

    bench.on_bad_image = raises
    bench.send(1, fail)
    bench.ends.wait(lambda: bench.ends.drops)
    bench.send(2)
    bench.host.wait_offered(1)
    assert bench.decoder.is_alive()
    assert [str(error) for error in raised] == ["no image"]


def test_while_no_dnn_has_an_engine_the_newest_image_waits_undecoded(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.host.serving = False
    for number in (1, 2, 3):
        bench.send(number)
    bench.host.serving = True
    assert bench.host.wait_offered(1) == [3]
    assert [end[0] for end in bench.ends.lost()] == [1, 2]
    assert bench.decoded == [3]


def test_images_for_disabled_dnns_are_counted_and_not_decoded(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.accounts.failure(Failure("object", "3 failures in a row", 3, disabled=True))
    bench.send(1)
    bench.ends.wait(lambda: bench.ends.drops)
    assert bench.ends.lost() == [(1, "object", DropReason.DISABLED)]
    assert "3 failures" in bench.ends.drops[0].message
    bench.accounts.enabled("object")
    bench.send(2)
    assert bench.host.wait_offered(1) == [2]
    assert bench.decoded == [2]


def test_a_frame_that_cannot_be_offered_is_counted_and_the_thread_continues(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), buffers=1)
    bench.host.fails = OSError("no such host")
    bench.send(1)
    bench.ends.wait(lambda: len(bench.ends.drops) == 2)
    assert {end[2] for end in bench.ends.lost()} == {DropReason.ENGINE_LOST}
    bench.host.fails = None
    bench.send(2)
    assert bench.host.wait_offered(1) == [2]


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


def test_an_image_whose_decoding_outlasts_closing_is_dropped(make: Callable[..., Bench]) -> None:
    """The host may serve for other accounts by then, with the same frame numbers."""
    bench = make(gate=True, dnns=("lane", "object"))
    bench.send(1)
    bench.wait_decoding()
    bench.send(2)
    assert not bench.decoder.close(0.05)
    assert bench.ends.lost() == [(2, "lane", DropReason.SHUTDOWN), (2, "object", DropReason.SHUTDOWN)]
    bench.permits.release()
    assert bench.decoder.close(WAIT_S)
    assert bench.host.stamps() == []
    assert bench.ends.lost()[2:] == [(1, "lane", DropReason.SHUTDOWN), (1, "object", DropReason.SHUTDOWN)]
    bench.check()


def test_the_waiting_thread_keeps_no_reference_to_an_image(make: Callable[..., Bench]) -> None:
    bench = make()
    frame = Frame("front", 1, context=1)
    message = np.zeros(3, np.uint8)
    bench.decoder.arrived(frame, lambda allocate, message=message: allocate(2, 3))  # type: ignore[misc]
    bench.host.wait_offered(1)
    bench.host.answer("object")
    gone = weakref.ref(frame), weakref.ref(message)
    bench.ends.results.clear()
    bench.host.offered.clear()
    del frame, message
    bench.send(2)
    bench.host.wait_offered(1)
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


class Worker(threading.Thread):
    """A DNN: takes the newest frame from its mailbox and answers it later; sometimes it drops all its frames."""

    def __init__(self, dnn: str, accounts: Accounts, service_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.dnn, self.accounts, self.service_s, self.chance = dnn, accounts, service_s, random.Random(seed)
        self.wake = threading.Condition()
        self.mail: tuple[int, Frame] | None = None
        self.ended = False

    def offer(self, number: int, frame: Frame) -> None:
        with self.wake:
            old, self.mail = self.mail, (number, frame)
            self.wake.notify()
        if old is not None:
            self.accounts.drop(old[0], self.dnn, DropReason.OVERWRITTEN, "")

    def run(self) -> None:
        while True:
            with self.wake:
                self.wake.wait_for(lambda: self.mail is not None or self.ended)
                if self.mail is None:
                    return
                (number, frame), self.mail = self.mail, None
            time.sleep(self.service_s * self.chance.random() * 2)
            if self.chance.random() < 0.1:
                self.accounts.drop_unanswered([self.dnn], DropReason.ENGINE_LOST, "")
            now_ns = time.monotonic_ns()
            self.accounts.result(number, self.dnn, None, Timing(frame.received_ns, 0, now_ns, 0, 0, 0, 0))


class BusyHost:
    """A host with slots in shared memory and a worker per DNN."""

    def __init__(self, workers: list[Worker]) -> None:
        self.pool = SlotPool(SlotLayout("front", slots_needed(len(workers)), 6))
        self.workers = workers

    def has_engine_for(self, camera: str) -> bool:
        return True

    def decodes_jpeg(self, camera: str, dnns: Collection[str]) -> bool:
        return False

    def buffer(self, camera: str, timeout_s: float) -> Slot | None:
        return self.pool.take(timeout_s)

    def offer(self, number: int, frame: Frame, buffer: Slot, dnns: tuple[str, ...]) -> None:
        for worker in self.workers:
            worker.offer(number, frame)


@pytest.mark.parametrize("quick_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_every_image_is_counted_with_fast_and_slow_dnns(seed: int, quick_share: float) -> None:
    chance = random.Random(seed)
    services_s = {f"dnn{number}": chance.choice((0.0, 0.001, 0.01, 0.03)) for number in range(chance.randint(1, 4))}
    ends = Ends()
    seen: dict[str, list[int]] = {dnn: [] for dnn in services_s}

    def on_result(result: Result) -> None:
        number = result.frame.stamp_ns
        assert (result.frame.image() == number % 256).all(), "the image changed while it was in use"
        seen[result.dnn].append(number)

    accounts = Accounts(
        dict.fromkeys(services_s, ("front",)),
        replace(ends.callbacks(), on_result=on_result),
        time.monotonic_ns,
        on_answered=lambda dnn, camera, handed_ns, timing: decoder.answered(dnn, handed_ns, timing),
    )
    workers = [Worker(dnn, accounts, service_s, seed) for dnn, service_s in services_s.items()]
    host = BusyHost(workers)
    decoder = CameraDecoder("front", host, accounts, lambda error: None)  # type: ignore[arg-type]
    for thread in (*workers, decoder):
        thread.start()

    def fill(allocate: Allocate, value: int) -> npt.NDArray[np.uint8]:
        image = allocate(1, 2)
        image[:] = value
        return image

    for number in range(300):
        decoder.arrived(
            Frame("front", number),
            lambda allocate, value=number % 256: fill(allocate, value),  # type: ignore[misc]
            quick=chance.random() < quick_share,
        )
        time.sleep(0.002 * chance.random())
    assert decoder.close(WAIT_S)
    assert accounts.wait_idle(WAIT_S)
    for worker in workers:
        with worker.wake:
            worker.ended = True
            worker.wake.notify()
        worker.join(WAIT_S)
        assert not worker.is_alive()
    for stream in accounts.statistics().by_dnn_and_camera.values():
        assert stream.offered == 300 == stream.published + sum(stream.dropped.values())
    assert sorted(host.pool.free) == list(range(slots_needed(len(workers))))
    assert not [drop for drop in ends.drops if drop.reason is DropReason.PUBLISH_ERROR]
    for stamps in seen.values():
        assert stamps == sorted(set(stamps))
        assert stamps


def test_a_quick_image_is_decoded_in_the_thread_that_receives_it(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.wait_idle()
    bench.send(1, quick=True)
    assert bench.host.stamps() == [1]
    assert bench.threads == [threading.current_thread()]
    bench.host.answer("object")
    bench.check()


def test_a_quick_image_that_no_dnn_needs_yet_is_left_to_the_thread(make: Callable[..., Bench]) -> None:
    bench = make()
    for number in range(1, 5):  # a DNN that takes 100 ms, a camera with a period of 10 ms
        bench.wait_idle()
        bench.send(number, quick=True)
        if number < 4:
            bench.host.answer("object", finished_ns=bench.clock.now + number * 100 * MS)
        bench.clock.now += 10 * MS
    bench.wait_idle()
    bench.send(5, quick=True)
    assert bench.host.stamps() == [1, 2, 3, 4]
    bench.host.answer("object", finished_ns=bench.clock.now)
    assert bench.host.wait_offered(5) == [1, 2, 3, 4, 5]
    assert bench.threads == [threading.current_thread()] * 4 + [bench.decoder]
    bench.host.answer("object")
    bench.check()


def test_a_quick_image_does_not_overtake_one_in_the_thread(make: Callable[..., Bench]) -> None:
    bench = make(gate=True)
    bench.send(1)
    bench.wait_decoding()
    bench.send(2, quick=True)
    assert bench.host.stamps() == []
    bench.permits.release(2)
    assert bench.host.wait_offered(2) == [1, 2]
    assert bench.threads == [bench.decoder] * 2
    for index in (0, 1):
        bench.host.answer("object", index)
    bench.check()


def test_a_quick_image_without_a_free_buffer_is_left_to_the_thread(make: Callable[..., Bench]) -> None:
    bench = make(buffers=1)
    bench.wait_idle()
    bench.send(1, quick=True)
    bench.wait_idle()
    bench.send(2, quick=True)
    assert bench.host.stamps() == [1]
    bench.host.answer("object")
    assert bench.host.wait_offered(2) == [1, 2]
    assert bench.threads == [threading.current_thread(), bench.decoder]
    bench.host.answer("object")
    bench.check()


def test_a_quick_image_whose_decoding_outlasts_closing_is_dropped(make: Callable[..., Bench]) -> None:
    bench = make(gate=True)
    bench.wait_idle()
    receiver = threading.Thread(target=bench.send, args=(1,), kwargs={"quick": True})
    receiver.start()
    bench.wait_decoding()
    assert bench.decoder.close(WAIT_S)
    bench.permits.release()
    receiver.join(WAIT_S)
    assert bench.host.stamps() == []
    assert bench.ends.lost() == [(1, "object", DropReason.SHUTDOWN)]
    bench.check()


def test_a_quick_bad_image_is_reported(make: Callable[..., Bench]) -> None:
    def fail(allocate: Allocate) -> npt.NDArray[np.uint8]:
        raise FrameError("no pixels")

    bench = make()
    bench.wait_idle()
    bench.send(1, fail, quick=True)
    assert [str(error) for error in bench.bad] == ["no pixels"]
    assert bench.ends.lost() == [(1, "object", DropReason.BAD_IMAGE)]
    bench.check()


def test_images_that_no_dnn_wants_are_not_decoded(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), admission=Admission({"lane": False, "object": False}))
    bench.send(1)
    assert bench.ends.lost() == [(1, dnn, DropReason.SWITCHED_OFF) for dnn in ("lane", "object")]
    assert bench.decoded == []
    bench.check()


def test_an_image_is_handed_only_to_the_dnns_that_want_it(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), admission=Admission({"lane": False}))
    bench.send(1)
    assert bench.host.wait_offered(1) == [1]
    assert bench.host.recipients == [("object",)]
    bench.host.answer("object")
    assert bench.ends.lost() == [(1, "lane", DropReason.SWITCHED_OFF)]
    bench.check()


def test_a_limited_dnn_gets_the_image_that_replaced_its_own(make: Callable[..., Bench]) -> None:
    bench = make(dnns=("lane", "object"), gate=True, admission=Admission({}, {"lane": 1.0}))
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
    admission = Admission()
    bench = make(gate=True, admission=admission)
    bench.send(1)
    bench.wait_decoding()
    bench.send(2)
    admission.set_enabled("object", False)
    bench.decoder.admission_changed()
    bench.permits.release(2)
    bench.ends.wait(lambda: bench.ends.drops)
    assert bench.ends.lost() == [(2, "object", DropReason.SWITCHED_OFF)]
    assert bench.host.wait_offered(1) == [1]
    bench.host.answer("object")
    bench.check()


def test_the_accounts_stay_exact_while_dnns_are_switched_and_limited(make: Callable[..., Bench]) -> None:
    admission, numbers = Admission({}, {"lane": 50.0}), random.Random(3)
    bench = make(dnns=("lane", "object"), admission=admission)
    for number in range(300):
        if numbers.random() < 0.1:
            admission.set_enabled(numbers.choice(("lane", "object")), numbers.random() < 0.6)
            bench.decoder.admission_changed()
        bench.clock.now += numbers.randrange(30 * MS)
        bench.send(number)
        if numbers.random() < 0.5:
            time.sleep(0.0005)
        for index in range(len(bench.host.offered)):
            for dnn in bench.host.recipients[index]:
                bench.host.answer(dnn, index)
    for dnn in ("lane", "object"):
        admission.set_enabled(dnn, False)
    bench.decoder.admission_changed()

    def answered() -> bool:
        for index, dnns in enumerate(list(bench.host.recipients)):
            for dnn in dnns:
                bench.host.answer(dnn, index)
        return all(not stream.pending for stream in bench.accounts.statistics().by_dnn_and_camera.values())

    deadline = time.monotonic() + WAIT_S
    while not answered():  # the last image may be dropped without the host noticing
        assert time.monotonic() < deadline, "not every image was answered in time"
        time.sleep(0.001)
    bench.check()
    reasons = {reason for stream in bench.accounts.statistics().by_dnn_and_camera.values() for reason in stream.dropped}
    assert {DropReason.SWITCHED_OFF, DropReason.RATE_LIMITED} <= reasons
