"""The computer on which a run takes place, and readings of its sensors during the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.ros.board.monitor import BoardMonitor
from multi_dnn_ros.ros.board.sensors import Reading, optional_number, text_of

_NVPMODEL_LIMIT_S = 5.0


def describe_board(device: str, root: Path = Path("/")) -> dict[str, str]:
    """Properties of the computer that the figures depend on, besides those of every result: hardware (of a
    single-board computer), power mode (of a Jetson), CPU governor, ROS runtime. root: /, or a copy of its files.
    """
    return {
        "device": device,
        "runtime": f"ROS 2 {os.environ.get('ROS_DISTRO', '')} {get_rmw_implementation_identifier()}",
        "hardware": text_of(root / "proc/device-tree/model").rstrip("\0"),
        "power_mode": power_mode(root),
        "governor": text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }


def power_mode(root: Path = Path("/")) -> str:
    """Power mode of a Jetson as nvpmodel names it; its number if only that is readable; empty elsewhere."""
    tool = shutil.which("nvpmodel")
    if tool is not None:
        try:
            done = subprocess.run(
                [tool, "-q"], capture_output=True, encoding="utf-8", errors="replace", timeout=_NVPMODEL_LIMIT_S,
                check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            pass  # older versions need root
        else:
            found = [line.partition(":")[2].strip() for line in done.stdout.splitlines() if "Power Mode:" in line]
            if found:
                return found[0]
    number = text_of(root / "var/lib/nvpmodel/status").partition("pmode:")[2].strip()
    return f"number {int(number)}" if number.isdecimal() else ""


def jetson_gpu_load(root: Path = Path("/sys")) -> float | None:
    """Busy share of the GPU of a Jetson, 0 to 1; None elsewhere. The driver counts in thousandths."""
    for folder in sorted((root / "class/devfreq").glob("*gpu*")):
        value = optional_number(folder / "device/load")
        if value is not None and 0.0 <= value <= 1000.0:
            return value / 1000.0
    return None


@dataclass(frozen=True)
class TimedReading:
    """A reading and its time. at_s: monotonic clock. gpu_share: busy share of a Jetson's GPU, 0 to 1."""

    at_s: float
    reading: Reading
    gpu_share: float | None = None


@dataclass(frozen=True)
class SensorSummary:
    """Readings over some time; None: not readable. power_w: mean, in watts. temperature_c: the highest, in degrees
    Celsius. throttled: reason by name of what was throttled. gpu_share: mean busy share of a Jetson's GPU, 0 to 1.
    """

    power_w: float | None
    temperature_c: float | None
    throttled: dict[str, str]
    gpu_share: float | None


class SensorLog:
    """Context manager that stores a reading of a BoardMonitor at each call of :meth:`poll`.

    readings: once a second, in the order of time. problems: one line for each sensor that fails and is therefore left
    out.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.readings: list[TimedReading] = []
        self._monitor = BoardMonitor(self.problems.append, period_s=1.0)
        self._last: Reading | None = self._monitor.latest()  # empty at first

    def __enter__(self) -> SensorLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._monitor.close()

    def poll(self) -> None:
        """Store the latest reading, if it is new."""
        reading = self._monitor.latest()
        if reading is not self._last:
            self._last = reading
            self.readings.append(TimedReading(time.monotonic(), reading, jetson_gpu_load()))

    def between(self, begin_s: float, end_s: float) -> list[TimedReading]:
        """The readings between two times of the monotonic clock, both included."""
        return [each for each in self.readings if begin_s <= each.at_s <= end_s]


def summarize(readings: Sequence[TimedReading]) -> SensorSummary:
    """The summary of these readings."""
    powers = [each.reading.total_w for each in readings if each.reading.total_w is not None]
    loads = [each.gpu_share for each in readings if each.gpu_share is not None]
    return SensorSummary(
        sum(powers) / len(powers) if powers else None,
        max((value.value for each in readings for value in each.reading.temperatures_c.values()), default=None),
        {name: reason for each in readings for name, reason in each.reading.throttled.items()},
        sum(loads) / len(loads) if loads else None,
    )
