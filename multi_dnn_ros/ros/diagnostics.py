"""The statuses on /diagnostics, which docs/diagnostics.md lists.

Keys contain the unit. Times are on the monotonic clock, but for ages relative to header stamps.
"""

from __future__ import annotations

import math
import os
import platform
from collections import deque
from collections.abc import Mapping
from importlib.metadata import distributions
from typing import NamedTuple

from diagnostic_msgs.msg import DiagnosticStatus

from multi_dnn_ros.engine.task import DropEffect, DropReason
from multi_dnn_ros.serving.statistics import DnnCameraStatistics, Percentiles

#: Versions that a bug report needs. ROS: the distribution.
VERSIONS = {
    "multi_dnn_ros": next((it.version for it in distributions(name="multi_dnn_ros")), "not installed"),
    "ROS": os.environ.get("ROS_DISTRO", "unknown"),
    "Python": platform.python_version(),
}
OK, WARN, ERROR, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE

#: Rates and percentiles cover this time.
WINDOW_NS = 10_000_000_000
#: A clock that is set back by more than this has started again: a recording is played again. Less is a correction.
SET_BACK_NS = 500_000_000
#: A median age beyond this, in either direction, is the difference of two clocks and not a delay.
_MAX_AGE_MS = 10_000.0
_MIN_IMAGES = 10
#: If a DNN processes less than this share of a camera's frames, its status is WARN.
_MIN_SERVED = 0.5


class Status(NamedTuple):
    """One status. name: without the name of the node. values: by name with the unit."""

    name: str
    level: bytes
    text: str
    values: Mapping[str, object]


class StampAges:
    """The ages of one camera's images. An image without a stamp, and a clock at zero (simulated time before the first
    message on /clock) give none. When the clock is set back, all ages are forgotten.
    """

    def __init__(self) -> None:
        self._ages: deque[tuple[int, int]] = deque(maxlen=1024)  # (monotonic time, age)
        self._clock_ns = self._without_age = 0

    def add(self, at_ns: int, clock_ns: int, stamp_ns: int) -> None:
        """Add an age. at_ns: monotonic clock. clock_ns: the node's clock. stamp_ns: of the header."""
        if clock_ns < self._clock_ns - SET_BACK_NS:
            self._ages.clear()
        self._clock_ns = clock_ns
        self._without_age = 0 if clock_ns and stamp_ns else self._without_age + 1
        if not self._without_age:
            self._ages.append((at_ns, clock_ns - stamp_ns))

    def percentiles(self, now_ns: int) -> Percentiles:
        """The percentiles of the last 10 s; negative: the sender's clock is ahead of the node's."""
        return Percentiles.of(age for at, age in self._ages.copy() if now_ns - at <= WINDOW_NS)

    def problem(self, now_ns: int, *, simulated: bool) -> str:
        """Why the stamps do not fit the node's clock, which breaks TF, and what to do; empty: nothing is known.
        simulated: the node uses the time of the topic /clock.
        """
        if self._without_age >= _MIN_IMAGES:
            if not self._clock_ns:
                return "use_sim_time is true, but nothing publishes /clock: `ros2 bag play --clock 100`"
            return "the images have no stamp (header.stamp is 0): correct the camera's driver"
        age = self.percentiles(now_ns)
        if age.count < _MIN_IMAGES or abs(age.p50) <= _MAX_AGE_MS:
            return ""
        cure = "synchronize the computers; for a recording set use_sim_time, and `ros2 bag play --clock 100`"
        cure = "/clock has the time of something else" if simulated else cure
        what = "older" if age.p50 > 0 else "newer"
        return f"the stamps of the images are {abs(age.p50) / 1e3:.0f} s {what} than the clock of the node: {cure}"


def dnn_level(now: DnnCameraStatistics, before: DnnCameraStatistics, silence: str) -> tuple[bytes, str]:
    """Level and message of an enabled DNN on a camera between two statistics. silence: of the camera; empty: none."""
    lost = {reason: now.dropped.get(reason, 0) - before.dropped.get(reason, 0) for reason in DropReason}
    if failures := _losses(lost, DropEffect.FAILURE):
        return ERROR, failures
    if silence:
        return STALE, silence
    warnings = []
    if missed := now.deadline_misses - before.deadline_misses:
        warnings.append(f"{missed} deadlines missed")
    if others := _losses(lost, DropEffect.LOSS):
        warnings.append(others)
    done, overwritten = now.published - before.published, lost[DropReason.OVERWRITTEN]
    if overwritten and done < _MIN_SERVED * (done + overwritten):
        warnings.append(f"{overwritten} of {done + overwritten} frames overwritten before they were processed")
    return (WARN, "; ".join(warnings)) if warnings else (OK, f"{now.rate_hz:.1f} Hz")


def dnn_values(figures: DnnCameraStatistics) -> dict[str, object]:
    """The values of a DNN on a camera."""
    values: dict[str, object] = {
        "rate (Hz)": f"{figures.rate_hz:.2f}",
        "offered": figures.offered,
        "published": figures.published,
        "pending": figures.pending,
        "deadline misses": figures.deadline_misses,
        "frames per inference": f"{figures.batch:.2f}",
    }
    values.update({f"dropped: {reason.value}": figures.dropped.get(reason, 0) for reason in DropReason})
    for step, percentiles in figures.latencies.items():
        values.update(percentile_values(step, percentiles))
    return values


def percentile_values(step: str, percentiles: Percentiles) -> dict[str, object]:
    """p50, p95, p99 and max of a step in ms; nan without samples."""
    return {
        f"{step} {name} (ms)": f"{getattr(percentiles, name) if percentiles.count else math.nan:.3f}"
        for name in ("p50", "p95", "p99", "max")
    }


def _losses(lost: Mapping[DropReason, int], effect: DropEffect) -> str:
    return ", ".join(
        f"{count} frames lost: {reason.value}" for reason, count in lost.items() if count and reason.effect is effect
    )
