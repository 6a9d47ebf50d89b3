"""Rates without drift, stamps and repetition, on a fake clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from multi_dnn_ros.camera.playback import Player, Report
from multi_dnn_ros.camera.source import SourceImage


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
    """A source of numbered images; each takes `cost_s` to produce."""

    def __init__(
        self, time: FakeClock, count: int = 5, rate_hz: float | None = None, cost_s: float = 0.0, live: bool = False
    ) -> None:
        self.name = "fake"
        self.rate_hz = rate_hz
        self.live = live
        self.notes = ["scratched"]
        self._time = time
        self._count = count
        self._cost_s = cost_s

    def items(self) -> Iterator[SourceImage]:
        for index in range(self._count):
            self._time.now += self._cost_s
            yield SourceImage(np.full((1, 1, 3), index, np.uint8))


class Sink:
    """Records time, number and stamp of each image."""

    def __init__(self, time: FakeClock) -> None:
        self.times: list[float] = []
        self.numbers: list[int] = []
        self.stamps_ns: list[int] = []
        self._time = time

    def publish(self, item: SourceImage, stamp_ns: int) -> None:
        self.times.append(round(self._time.now - 100.0, 6))
        self.numbers.append(int(item.image[0, 0, 0]))
        self.stamps_ns.append(stamp_ns)


def play(time: FakeClock, source: FakeSource, **options: object) -> tuple[Sink, Report]:
    sink = Sink(time)
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


def test_count_and_loop_select_the_images() -> None:
    time = FakeClock()
    sink, report = play(time, FakeSource(time, rate_hz=10.0), count=7, loop=True, source_stamps=True)
    assert sink.numbers == [0, 1, 2, 3, 4, 0, 1]
    assert sink.stamps_ns == [round(k * 1e8) for k in range(7)]
    np.testing.assert_allclose(np.diff(sink.times), 0.1, atol=1e-6)
    assert report.published == 7


def test_a_live_source_is_limited_to_the_requested_rate() -> None:
    time = FakeClock()
    sink, _ = play(time, FakeSource(time, count=30, cost_s=1 / 30, live=True))
    assert len(sink.times) == 30
    sink, _ = play(time, FakeSource(time, count=30, cost_s=1 / 30, live=True), rate_hz=10.0)
    assert len(sink.times) in (10, 11)
    np.testing.assert_allclose(np.diff(sink.times), 0.1, atol=0.04)


def test_a_request_to_stop_ends_the_wait() -> None:
    time = FakeClock()
    _, report = play(time, FakeSource(time), rate_hz=0.001, running=lambda: time.now < 100.35)
    assert report.published == 1
    assert time.now < 100.5


def test_an_empty_source_ends_even_with_loop() -> None:
    time = FakeClock()
    _, report = play(time, FakeSource(time, count=0), loop=True)
    assert report.published == 0
    assert report.rate_hz == 0.0
