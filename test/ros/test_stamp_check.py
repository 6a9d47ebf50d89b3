"""The warning about stamps that do not fit the node's clock."""

from __future__ import annotations

import random

import pytest

from multi_dnn_ros.engine.statistics import Percentiles
from multi_dnn_ros.ros.stamp_ages import StampAges
from multi_dnn_ros.ros.stamp_check import StampCheck

START = 1_700_000_000_000_000_000


class Camera:
    """A camera whose images have one age."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.publishes_clock = True
        self._check = StampCheck("front", "/front/image_raw", self.lines.append, lambda: self.publishes_clock)

    def send(self, count: int, age_s: float, *, simulated: bool = False) -> list[str]:
        """Send images and check them; returns all warnings so far."""
        stamp_ns = START - round(age_s * 1e9)
        for _ in range(count):
            self._check.add(stamp_ns)
        self._check.update(Percentiles.of([START - stamp_ns] * (count if stamp_ns else 0)), simulated=simulated)
        return self.lines


@pytest.mark.parametrize("age_s", [-9.0, -0.02, 0.0, 0.1, 9.0])
def test_a_delay_is_no_difference_of_clocks(age_s: float) -> None:
    assert Camera().send(100, age_s) == []


def test_old_stamps_are_a_recording_or_another_clock() -> None:
    camera = Camera()
    (line,) = camera.send(10, 94_000_000.0)
    assert line.startswith("camera front, topic /front/image_raw: the stamps of the images are 94000000 s older than")
    assert "use_sim_time:=true" in line
    assert "--clock" in line
    assert len(camera.send(100, 94_000_000.0)) == 1  # once
    assert len(camera.send(100, 0.1)) == 1
    assert len(camera.send(100, 3600.0)) == 2  # again, after it was correct


def test_new_stamps_are_another_clock() -> None:
    (line,) = Camera().send(10, -3600.0)
    assert "3600 s newer than the clock of the node" in line


def test_too_few_images_are_not_judged() -> None:
    assert Camera().send(9, 3600.0) == []
    assert Camera().send(9, START / 1e9) == []


def test_images_without_stamps() -> None:
    (line,) = Camera().send(10, START / 1e9)
    assert "the images have no stamp (header.stamp is 0)" in line


@pytest.mark.parametrize("age_s", [-9.0, 0.0, 3.0, 3600.0])
def test_simulated_time_without_a_clock(age_s: float) -> None:
    camera = Camera()
    camera.publishes_clock = False
    assert camera.send(50, age_s, simulated=True) == []  # these may have arrived while /clock had a publisher
    assert camera.send(9, age_s, simulated=True) == []
    (line,) = camera.send(1, age_s, simulated=True)
    assert "use_sim_time is true, but nothing publishes /clock; play recordings with" in line


def test_the_end_of_a_recording_is_no_problem() -> None:
    camera = Camera()
    assert camera.send(50, 0.1, simulated=True) == []
    camera.publishes_clock = False  # the player has ended
    for _ in range(20):
        assert camera.send(0, 0.1, simulated=True) == []
    camera.publishes_clock = True  # the next one
    assert camera.send(50, 0.1, simulated=True) == []


def test_simulated_time_of_something_else() -> None:
    (line,) = Camera().send(10, 60.0, simulated=True)
    assert "/clock has the time of something else" in line


def test_a_slow_camera_causes_one_warning() -> None:
    """At 1 Hz, 9 to 11 images arrive in the 10 s before a check."""
    lines: list[str] = []
    check, ages = StampCheck("front", "/front/image_raw", lines.append, lambda: True), StampAges()
    order = random.Random(0)
    counts = set()
    arrivals = [second * 1_000_000_000 + order.randrange(200_000_000) for second in range(600)]
    for second in range(10, 599):
        now_ns = second * 1_000_000_000 + 100_000_000
        while arrivals[0] <= now_ns:
            at_ns = arrivals.pop(0)
            ages.add(at_ns, START + at_ns, at_ns + 1)  # stamped with the time since the computer was started
            check.add(at_ns + 1)
        counts.add(ages.percentiles(now_ns).count)
        check.update(ages.percentiles(now_ns), simulated=False)
    assert counts == {9, 10, 11}
    assert len(lines) == 1


def test_the_next_recording_without_a_clock_causes_the_next_warning() -> None:
    camera = Camera()
    assert len(camera.send(50, 3600.0)) == 1
    assert len(camera.send(0, 3600.0)) == 1
    assert len(camera.send(50, 3600.0)) == 2
