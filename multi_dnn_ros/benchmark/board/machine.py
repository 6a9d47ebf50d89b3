"""The computer on which a run takes place, and readings of its sensors during the run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.benchmark.board.record import Board
from multi_dnn_ros.common.reporting import cpu_count, cpu_model
from multi_dnn_ros.ros.board.monitor import BoardMonitor
from multi_dnn_ros.ros.board.sensors import Reading, optional_number, text_of

_NVPMODEL_LIMIT_S = 5.0


def describe_board(device: torch.device, root: Path = Path("/")) -> Board:
    """The properties of the computer that the figures depend on. root: /, or a copy of the files that are read."""
    gpu = gpu_memory = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu, gpu_memory = properties.name, int(properties.total_memory)
    distribution = os.environ.get("ROS_DISTRO", "")
    return Board(
        cpu=cpu_model(),
        cores=cpu_count(),
        memory_bytes=int(psutil.virtual_memory().total),
        gpu=gpu,
        gpu_memory_bytes=gpu_memory,
        kernel=platform.release(),
        system=platform.platform(),
        runtime=f"ROS 2 {distribution} {get_rmw_implementation_identifier()}",
        hardware=text_of(root / "proc/device-tree/model").rstrip("\0"),
        power_mode=power_mode(root),
        governor=text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    )


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

    @property
    def temperature(self) -> tuple[float | None, str]:
        """The highest temperature in degrees Celsius and its sensor; None and empty if there is no such sensor."""
        found = {name: value.value for name, value in self.reading.temperatures_c.items()}
        name = max(found, key=found.__getitem__, default="")
        return found.get(name), name

    @property
    def clock_share(self) -> float | None:
        """The lowest clock relative to its limit; None if no clock has a limit."""
        shares = [value.value / value.limit for value in self.reading.clocks_mhz.values() if value.limit]
        return min(shares, default=None)


@dataclass(frozen=True)
class SensorSummary:
    """Readings over some time. power_w: mean, in watts. temperature_c, hottest_sensor: the highest temperature, in
    degrees Celsius, and its sensor.

    throttled: reason by name of what was throttled. gpu_share: mean busy share of a Jetson's GPU, 0 to 1.
    """

    power_w: float | None
    temperature_c: float | None
    hottest_sensor: str
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
    """The summary of these readings; its figures are None where no reading has them."""
    powers = [each.reading.total_w for each in readings]
    known = [power for power in powers if power is not None]
    temperatures = [(value, name) for value, name in (each.temperature for each in readings) if value is not None]
    hottest, sensor = max(temperatures, default=(None, ""))
    loads = [each.gpu_share for each in readings if each.gpu_share is not None]
    return SensorSummary(
        sum(known) / len(known) if known else None,
        hottest,
        sensor,
        {name: reason for each in readings for name, reason in each.reading.throttled.items()},
        sum(loads) / len(loads) if loads else None,
    )
