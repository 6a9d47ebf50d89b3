"""Rates without drift, stamps and repetition, on a fake clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.camera.pace import Grid, Pace
from multi_dnn_ros.camera.playback import Player
from multi_dnn_ros.camera.source import Recorded, SourceImage


class FakeClock:
    """A clock that only advances by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0.0 < seconds <= 0.1
        self.now += seconds


class FakeSource:
    """A source of numbered images, or of recorded messages at given times; each takes `cost_s` to produce."""

    def __init__(
        self,
        time: FakeClock,
        count: int = 5,
        rate_hz: float | None = None,
        cost_s: float = 0.0,
        live: bool = False,
        recorded_s: tuple[float, ...] = (),
    ) -> None:
        self.name = "fake"
        self.rate_hz = rate_hz
        self.live = live
        self.notes = ["scratched"]
        self._time = time
        self._count = count
        self._cost_s = cost_s
        self._recorded_s = recorded_s

    def items(self) -> Iterator[SourceImage | Recorded]:
        for due_s in self._recorded_s:
            yield Recorded("sensor_msgs/msg/Image", round(due_s * 1e9), b"")
        for index in range(0 if self._recorded_s else self._count):
            self._time.now += self._cost_s
            yield SourceImage(np.full((1, 1, 3), index, np.uint8))


class Sink:
    """Records time, number and stamp of each image. bad: indices of the calls that return False."""

    def __init__(self, time: FakeClock, bad: tuple[int, ...] = ()) -> None:
        self.times: list[float] = []
        self.numbers: list[int] = []
        self.stamps_ns: list[int | None] = []
        self._time = time
        self._bad = bad
        self._calls = 0

    def publish(self, item: SourceImage | Recorded, stamp_ns: int | None) -> bool:
        self._calls += 1
        if self._calls - 1 in self._bad:
            return False
        self.times.append(round(self._time.now - 100.0, 6))
        self.numbers.append(int(item.image[0, 0, 0]) if isinstance(item, SourceImage) else -1)
        self.stamps_ns.append(stamp_ns)
        return True


def play(time: FakeClock, source: FakeSource, sink: Sink | None = None, **options: object) -> tuple[Sink, object]:
    sink = sink or Sink(time)
    player = Player(
        source,
        sink,
        now_ns=lambda: round(time.now * 1e9),
        clock=time,
        sleep=time.sleep,
        **options,  # type: ignore[arg-type]
    )
    return sink, player.play()


def test_the_rate_does_not_drift_with_the_time_per_image() -> None:
    time = FakeClock()
    sink, report = play(time, FakeSource(time, count=50, cost_s=0.03), rate_hz=20.0)
    np.testing.assert_allclose(sink.times, 0.03 + np.arange(50) / 20, atol=1e-6)
    assert str(report) == "published 50 frames in 2.5 s (20.00 Hz)"
    assert report.rate_hz == pytest.approx(20.0)
    assert report.late == 0
    assert report.notes == ["scratched"]


def test_a_slow_source_counts_as_late_and_is_not_followed_by_bursts() -> None:
    time = FakeClock()
    sink, report = play(time, FakeSource(time, count=10, cost_s=0.25), rate_hz=10.0)
    assert np.diff(sink.times).min() >= 0.1
    assert report.late > 0
    assert f"{report.late} of them more than a period late" in str(report)


@given(
    begin_s=st.floats(0.0, 1e6),
    rate_hz=st.floats(0.5, 120.0),
    fraction=st.floats(0.0, 0.99),
    periods=st.lists(st.sampled_from([0.0, 0.4, 2.3, 5.7]), min_size=1, max_size=8),
)
def test_a_phase_is_kept_after_a_start_at_any_time_and_after_late_images(
    begin_s: float, rate_hz: float, fraction: float, periods: list[float]
) -> None:
    time, period_s = FakeClock(), 1.0 / rate_hz
    time.now = begin_s
    pace = Pace(period_s, clock=time, sleep=time.sleep, grid=Grid(period_s, fraction * period_s))
    published = []
    for index, taken in enumerate(periods):
        time.now += taken * period_s
        assert pace.wait(index * period_s)
        published.append(time.now / period_s - fraction)
    np.testing.assert_allclose(published, np.round(published), atol=1e-4)
    assert (np.diff(published) > 0.5).all()
    assert published[0] - (begin_s / period_s - fraction) <= periods[0] + 1.0 + 1e-4


@given(number=st.integers(-1000, 100_000), period_s=st.floats(1e-3, 2.0), phase_s=st.floats(0.0, 1e3))
def test_a_time_of_a_grid_is_its_own_next_time(number: int, period_s: float, phase_s: float) -> None:
    time_s = phase_s + number * period_s
    assert Grid(period_s, phase_s).next(time_s) == time_s
    later_s = Grid(period_s, phase_s).next(time_s + period_s / 2)
    assert later_s == phase_s + (number + 1) * period_s


def test_the_rate_is_that_of_the_source_or_the_default() -> None:
    for source_hz, expected in ((4.0, 0.25), (None, 0.1)):
        time = FakeClock()
        sink, _ = play(time, FakeSource(time, rate_hz=source_hz))
        np.testing.assert_allclose(np.diff(sink.times), expected, atol=1e-6)


def test_stamps_are_the_current_time_or_those_of_the_source() -> None:
    time = FakeClock()
    sink, _ = play(time, FakeSource(time, rate_hz=4.0), rate_hz=10.0)
    assert sink.stamps_ns == [round((100 + t) * 1e9) for t in sink.times]
    sink, _ = play(time, FakeSource(time, rate_hz=4.0), rate_hz=10.0, source_stamps=True)
    assert sink.stamps_ns == [0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000]


def test_start_count_and_loop_select_the_images() -> None:
    time = FakeClock()
    sink, report = play(time, FakeSource(time, rate_hz=10.0), start_at=3, count=6, loop=True, source_stamps=True)
    assert sink.numbers == [3, 4, 0, 1, 2, 3]
    assert sink.stamps_ns == [round(k * 1e8) for k in range(3, 9)]
    np.testing.assert_allclose(np.diff(sink.times), 0.1, atol=1e-6)
    assert report.published == 6


def test_a_recording_keeps_its_intervals_and_unreadable_messages_are_counted() -> None:
    time = FakeClock()
    sink, report = play(time, FakeSource(time, recorded_s=(0.0, 0.5, 0.6)), count=5, loop=True)
    np.testing.assert_allclose(sink.times, [0.0, 0.5, 0.6, 0.7, 1.2], atol=1e-6)
    sink, report = play(time, FakeSource(time, recorded_s=(0.0, 0.5, 0.6)), Sink(time, bad=(1,)), source_stamps=True)
    assert (report.published, report.unreadable) == (2, 1)
    assert sink.stamps_ns == [None, None]
    sink, _ = play(time, FakeSource(time, recorded_s=(0.0, 0.5, 0.6)), rate_hz=10.0)
    np.testing.assert_allclose(np.diff(sink.times), 0.1, atol=1e-6)


def test_a_live_source_is_limited_to_the_requested_rate() -> None:
    time = FakeClock()
    sink, _ = play(time, FakeSource(time, count=30, cost_s=1 / 30, live=True))
    assert len(sink.times) == 30
    sink, _ = play(time, FakeSource(time, count=30, cost_s=1 / 30, live=True), rate_hz=10.0)
    assert len(sink.times) in (10, 11)
    np.testing.assert_allclose(np.diff(sink.times), 0.1, atol=0.04)


def test_a_request_to_stop_ends_the_wait() -> None:
    time = FakeClock()
    pace = Pace(1.0, clock=time, sleep=time.sleep, running=lambda: time.now < 100.35)
    assert pace.wait(0.0)
    assert not pace.wait(1000.0)
    assert time.now < 100.5


def test_an_empty_source_ends_even_with_loop() -> None:
    time = FakeClock()
    _, report = play(time, FakeSource(time, count=0), loop=True)
    assert report.published == 0
    assert report.rate_hz == 0.0
