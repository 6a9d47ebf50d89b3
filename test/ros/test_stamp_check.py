"""The warning about stamps that do not fit the node's clock."""

from __future__ import annotations

import pytest

from multi_dnn_ros.engine.statistics import Percentiles
from multi_dnn_ros.ros.stamp_check import StampCheck

START = 1_700_000_000_000_000_000


class Camera:
    """A camera whose images have one age. publishes_clock: whether /clock has a publisher."""

    def __init__(self, publishes_clock: bool = True) -> None:
        self.lines: list[str] = []
        self._check = StampCheck("front", "/front/image_raw", self.lines.append, lambda: publishes_clock)

    def send(self, count: int, age_s: float, *, clock_ns: int = START, simulated: bool = False) -> list[str]:
        """Send images and check them; returns all warnings so far."""
        stamp_ns = clock_ns - round(age_s * 1e9)
        for _ in range(count):
            self._check.add(clock_ns, stamp_ns)
        ages = [clock_ns - stamp_ns] * (count if clock_ns and stamp_ns else 0)
        self._check.update(Percentiles.of(ages), simulated=simulated)
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


def test_simulated_time_without_a_clock() -> None:
    (line,) = Camera(publishes_clock=False).send(10, -START / 1e9, clock_ns=0, simulated=True)
    assert "use_sim_time is true, but no time has been received on /clock" in line
    (line,) = Camera(publishes_clock=False).send(10, 60.0, simulated=True)
    assert "use_sim_time is true, but nothing publishes /clock" in line


def test_simulated_time_of_something_else() -> None:
    (line,) = Camera().send(10, 60.0, simulated=True)
    assert "/clock has the time of something else" in line
