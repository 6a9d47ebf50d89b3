"""Rates without drift, and repetition, on a fake clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from multi_dnn_ros.camera.publisher import Report, play
from multi_dnn_ros.camera.sources import Source, SourceImage


class FakeClock:
    """A clock that only advances by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0.0 < seconds <= 0.1
        self.now += seconds


class FakeSource(Source):
    """A source of numbered images; each takes `cost_s` to produce."""

    def __init__(
        self, time: FakeClock, count: int = 5, rate_hz: float | None = None, cost_s: float = 0.0, live: bool = False
    ) -> None:
        super().__init__("fake")
        self.rate_hz, self.live, self.count = rate_hz, live, count
        self._time, self._cost_s = time, cost_s

    def items(self) -> Iterator[SourceImage]:
        for index in range(self.count):
            self._time.now += self._cost_s
            yield SourceImage(np.full((1, 1, 3), index, np.uint8))


def played(time: FakeClock, source: FakeSource, **options: object) -> tuple[list[float], list[int], Report]:
    """Times and numbers of the published images."""
    times, numbers, report = [], [], Report()

    def publish(item: SourceImage) -> None:
        times.append(round(time.now - 100.0, 6))
        numbers.append(int(item.image[0, 0, 0]))

    play(source, publish, report, clock=time, sleep=time.sleep, **options)  # type: ignore[arg-type]
    assert report.published == len(times)
    return times, numbers, report


def test_the_rate_does_not_drift_with_the_time_per_image() -> None:
    time = FakeClock()
    times, _, report = played(time, FakeSource(time, count=50, cost_s=0.03), rate_hz=20.0)
    np.testing.assert_allclose(times, 0.03 + np.arange(50) / 20, atol=1e-6)
    assert "20.00 Hz" in str(report)
    assert report.late == 0


def test_a_slow_source_counts_as_late_and_is_not_followed_by_bursts() -> None:
    time = FakeClock()
    times, _, report = played(time, FakeSource(time, count=10, cost_s=0.25), rate_hz=10.0)
    assert np.diff(times).min() >= 0.1
    assert report.late > 0


def test_count_and_loop_select_the_images() -> None:
    time = FakeClock()
    _, numbers, _ = played(time, FakeSource(time), count=7, loop=True)
    assert numbers == [0, 1, 2, 3, 4, 0, 1]
    assert played(time, FakeSource(time, count=0), loop=True)[1] == []  # ends, too


def test_a_request_to_stop_ends_the_wait() -> None:
    time = FakeClock()
    _, _, report = played(time, FakeSource(time), rate_hz=0.001, running=lambda: time.now < 100.35)
    assert report.published == 1
    assert time.now < 100.5
