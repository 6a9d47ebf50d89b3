"""Notices cameras whose stamps do not fit the node's clock, which breaks TF and the fusion of several sensors.

Nothing here needs ROS.
"""

from __future__ import annotations

from collections.abc import Callable

from multi_dnn_ros.engine.statistics import Percentiles

#: A median age beyond this, in either direction, is the difference of two clocks and not a delay.
_MAX_AGE_S = 10.0
#: Minimum number of images.
_MIN_IMAGES = 10
_PLAY = "play recordings with /clock (`ros2 bag play --clock 100`)"


class StampCheck:
    """Logs a warning when the stamps of one camera begin to differ from the node's clock.

    camera, topic: for the text. warn: logs a line. has_clock_publisher: whether something publishes the topic /clock.
    """

    def __init__(
        self, camera: str, topic: str, warn: Callable[[str], object], has_clock_publisher: Callable[[], bool]
    ) -> None:
        self._start = f"camera {camera}, topic {topic}: "
        self._warn = warn
        self._has_clock_publisher = has_clock_publisher
        self._unstamped = 0  # images since the last one with a stamp
        self._new = 0  # images since the last update
        self._without_clock: int | None = None  # images since /clock lost its last publisher; None: it has one
        self._problem = ""  # its kind

    def add(self, stamp_ns: int) -> None:
        """Count an image. stamp_ns: of the header."""
        self._unstamped = 0 if stamp_ns else self._unstamped + 1
        self._new += 1

    def update(self, age: Percentiles, *, simulated: bool) -> None:
        """Check the images so far; to be called periodically.

        age: ages of the images of the last 10 s, in ms. simulated: the node uses the time of the topic /clock.
        """
        if not simulated or self._has_clock_publisher():
            self._without_clock = None
        else:
            self._without_clock = 0 if self._without_clock is None else self._without_clock + self._new
        self._new = 0
        problem, text = self._check(age, simulated)
        if problem and problem != self._problem:
            self._warn(self._start + text)
        self._problem = problem

    def _check(self, age: Percentiles, simulated: bool) -> tuple[str, str]:
        """The kind of problem, empty if there is none, and the text for a new one."""
        if self._without_clock is not None and self._without_clock >= _MIN_IMAGES:
            return "no clock", f"use_sim_time is true, but nothing publishes /clock; {_PLAY}"
        if self._unstamped >= _MIN_IMAGES:
            return "unstamped", (
                "the images have no stamp (header.stamp is 0), so the results have none either: TF takes the latest "
                "transform, and other nodes cannot synchronize the results; correct the camera's driver"
            )
        difference_s = age.p50 / 1e3
        if age.count < _MIN_IMAGES:
            # The problem remains, unless no image arrives: a camera of 1 Hz has sometimes fewer and sometimes more.
            return self._problem if age.count else "", ""
        if abs(difference_s) <= _MAX_AGE_S:
            return "", ""
        text = (
            f"the stamps of the images are {abs(difference_s):.0f} s {'older' if difference_s > 0 else 'newer'} than "
            "the clock of the node: "
        )
        if not simulated:
            return "wall clock", (
                f"{text}for a recording or simulation, start the node with use_sim_time:=true, and {_PLAY}; otherwise "
                "synchronize the clocks of the computers, or correct the camera's driver"
            )
        if self._without_clock is not None:
            return "", ""  # the images are old, or too few so far
        return "simulated time", f"{text}use_sim_time is true, and /clock has the time of something else"
