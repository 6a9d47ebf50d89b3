"""When an image is decoded: examples of the rule, and cameras and DNNs of any speed in simulated time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.serving.decode_timing import DecodeTiming

MS = 1_000_000
PERIOD, DECODE, SERVICE = 33 * MS, 5 * MS, 200 * MS


def timing_with_history() -> DecodeTiming:
    """The timing of a 30 Hz camera with decodes of 5 ms and a DNN that takes 200 ms, whose last result was at 1 s."""
    timing = DecodeTiming()
    for number in range(5):
        timing.arrived(number * PERIOD)
        timing.decoded(DECODE)
    for finished in (600 * MS, 800 * MS, 1000 * MS):
        timing.answered("object", finished - SERVICE, finished)
    return timing


def test_a_dnn_without_a_frame_gets_the_newest_at_once() -> None:
    assert timing_with_history().due_ns("object", 1010 * MS, None) == 1010 * MS


def test_without_history_every_image_is_decoded() -> None:
    timing = DecodeTiming()
    assert timing.due_ns("object", 10 * MS, 5 * MS) == 10 * MS
    timing.answered("object", 0, SERVICE)
    assert timing.due_ns("object", SERVICE, SERVICE) == SERVICE  # the camera's period is not known


@pytest.mark.parametrize(
    ("arrived_ms", "at_once"), [(1010, False), (1050, False), (1130, False), (1140, True), (1199, True), (1300, True)]
)
def test_a_busy_dnn_needs_the_last_image_that_is_ready_before_it(arrived_ms: int, at_once: bool) -> None:
    """With a frame handed over at 1000 ms the DNN may be idle at 1175 ms; the next image is ready 40 ms later."""
    due = timing_with_history().due_ns("object", arrived_ms * MS, 1000 * MS)
    if at_once:
        assert due == arrived_ms * MS
    else:  # in case no other image arrives
        assert due == (1175 - 5 - 2) * MS


def test_one_slow_frame_delays_no_later_image() -> None:
    timing = timing_with_history()
    timing.answered("object", 1000 * MS, 9000 * MS)  # 8 s
    assert timing.due_ns("object", 9010 * MS, 9005 * MS) <= 9205 * MS


# -- in simulated time


@dataclass
class Dnn:
    """A DNN that takes `service_ns` per frame; the newest frame waits in its mailbox."""

    name: str
    service_ns: int
    jitter: float
    running: tuple[int, int, int] | None = None  # arrival, handed, until
    mail: tuple[int, int] | None = None  # arrival, handed
    idle_since: int = 0
    starved_ns: int = 0  # longest time idle while an image waited and none was being decoded
    idle_ns: int = 0  # while an image waited or was being decoded
    starts: list[tuple[int, int]] = field(default_factory=list)  # time, arrival of the image

    @property
    def handed(self) -> int | None:
        return self.running[1] if self.running else None


class Simulation:
    """One camera with the rule of CameraDecoder: decode when the first DNN needs the newest image."""

    def __init__(self, period: int, camera_jitter: float, decode: int, dnns: list[Dnn], seed: int) -> None:
        self.random = random.Random(seed)
        self.period, self.camera_jitter, self.decode, self.dnns = period, camera_jitter, decode, dnns
        self.timing = DecodeTiming()
        self.waiting: int | None = None  # arrival
        self.decoding: tuple[int, int] | None = None  # arrival, until
        self.decodes = self.images = 0
        self.now = 0

    def vary(self, mean: int, jitter: float) -> int:
        return max(1, round(mean * (1 + jitter * self.random.uniform(-1, 1))))

    def run(self, until: int) -> None:
        next_image = self.period
        while self.now < until:
            event_times = [next_image]
            event_times += [dnn.running[2] for dnn in self.dnns if dnn.running]
            if self.decoding:
                event_times.append(self.decoding[1])
            elif self.waiting is not None:
                event_times.append(self.due())
            later = max(self.now, min(event_times))
            for dnn in self.dnns:
                if not dnn.running:
                    if self.decoding or self.waiting is not None:
                        dnn.idle_ns += later - self.now
                    if self.waiting is not None and not self.decoding:
                        dnn.starved_ns = max(dnn.starved_ns, later - self.now)
            self.now = later
            for dnn in self.dnns:
                if dnn.running and dnn.running[2] <= self.now:
                    self.timing.answered(dnn.name, dnn.running[1], self.now)
                    dnn.running = None
                    self.start(dnn)
            if self.decoding and self.decoding[1] <= self.now:
                arrival, self.decoding = self.decoding[0], None
                for dnn in self.dnns:
                    dnn.mail = arrival, self.now
                    self.start(dnn)
            if next_image <= self.now:
                self.images += 1
                self.waiting = self.now
                self.timing.arrived(self.now)
                next_image += self.vary(self.period, self.camera_jitter)
            if self.waiting is not None and not self.decoding and self.due() <= self.now:
                took = self.vary(self.decode, 0.2)
                self.decoding, self.waiting = (self.waiting, self.now + took), None
                self.decodes += 1
                self.timing.decoded(took)

    def due(self) -> int:
        assert self.waiting is not None
        return min(self.timing.due_ns(dnn.name, self.waiting, dnn.handed) for dnn in self.dnns)

    def start(self, dnn: Dnn) -> None:
        if dnn.mail and not dnn.running:
            arrival, handed = dnn.mail
            dnn.mail = None
            dnn.running = arrival, handed, self.now + self.vary(dnn.service_ns, dnn.jitter)
            dnn.starts.append((self.now, arrival))


speeds = st.integers(1, 500)
jitters = st.floats(0.0, 0.9)


@given(
    period=st.integers(5, 200),
    camera_jitter=jitters,
    decode=st.integers(0, 60),  # 0: a JPEG file is only stored
    dnns=st.lists(st.tuples(speeds, jitters), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_no_dnn_is_ever_idle_while_an_image_waits(
    period: int, camera_jitter: float, decode: int, dnns: list[tuple[int, float]], seed: int
) -> None:
    """However wrong the estimates are, an idle DNN waits for the newest image at most for one decode."""
    fakes = [Dnn(f"dnn{number}", service * MS, jitter) for number, (service, jitter) in enumerate(dnns)]
    simulation = Simulation(period * MS, camera_jitter, decode * MS, fakes, seed)
    simulation.run(10_000 * MS)
    for dnn in fakes:
        assert dnn.starved_ns == 0
        arrivals = [arrival for _, arrival in dnn.starts]
        assert arrivals == sorted(set(arrivals))  # in order, none twice


@pytest.mark.parametrize("service_ms", [100, 200, 1000])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
@pytest.mark.parametrize("decode_ms", [0, 8])
def test_a_slow_dnn_is_kept_busy_with_few_decodes_and_recent_images(
    service_ms: int, jitter: float, decode_ms: int
) -> None:
    dnn = Dnn("slow", service_ms * MS, jitter)
    simulation = Simulation(33 * MS, 0.1, decode_ms * MS, [dnn], 1)
    simulation.run(100_000 * MS)
    starts = dnn.starts[5:]
    assert simulation.images > 2900
    assert len(starts) > 0.97 * 100_000 / service_ms - 10
    assert dnn.idle_ns < 0.02 * 100_000 * MS
    assert simulation.decodes < (2.0 + (0.15 + 2 * jitter) * service_ms / 33) * len(dnn.starts)
    assert simulation.decodes < 0.7 * simulation.images
    ages = sorted(start - arrival for start, arrival in starts)
    assert (
        ages[int(0.98 * len(ages))] <= (33 * 1.1 + 2 * decode_ms * 1.2 + 5) * MS
    )  # a period, a decode, and the previous decode


def test_a_dnn_that_is_faster_than_the_camera_gets_every_image() -> None:
    dnn = Dnn("fast", 20 * MS, 0.3)
    simulation = Simulation(33 * MS, 0.05, 5 * MS, [dnn], 1)
    simulation.run(10_000 * MS)
    assert simulation.decodes >= simulation.images - 1
    assert len(dnn.starts) >= simulation.images - 1
