"""The status `board`: thermal zones, the power rails of a Jetson, and NVIDIA GPUs through NVML.

A sensor that cannot be read, or holds no plausible value, is left out. Sources: the kernel's documentation of sysfs
(thermal, hwmon), and NVIDIA's Jetson Linux Developer Guide for ina3221.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multi_dnn_ros.ros.diagnostics import OK, WARN, Status

#: Distance of a temperature from its limit that is a warning, in degrees Celsius.
_NEAR_LIMIT_C = 5.0
#: Types of trip points at which the hardware is slowed down or switched off; at `active` ones a fan starts.
_LIMITS = ("passive", "hot", "critical")
#: Rails of a Jetson that measure the whole module; its other rails are parts of it.
_TOTAL_RAILS = ("VDD_IN", "POM_5V_IN")
#: Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean heat or a power failure, and their text. The ordinary
#: power cap (4) is left out, because a busy GPU always runs at it.
_THROTTLED = {0x08: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake"}


@dataclass
class Reading:
    """Values by name of the sensor: watts; degrees Celsius with the value above which the hardware protects itself
    (None: unknown); why a clock is lowered.
    """

    power_w: dict[str, float] = field(default_factory=dict)
    temperatures_c: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    throttled: dict[str, str] = field(default_factory=dict)

    @property
    def total_w(self) -> float | None:
        """Sum of all powers that are not included in another one; None: no power is known."""
        has_total = any(name in _TOTAL_RAILS for name in self.power_w)
        counted = [name for name in self.power_w if not has_total or name.startswith((*_TOTAL_RAILS, "GPU_"))]
        return sum(self.power_w[name] for name in counted) if counted else None


class BoardMonitor:
    """Reads the sensors from its creation on, in a thread of its own, because some drivers take milliseconds or block.

    warn: called once if reading fails. root: /sys, or a copy of it. latest: empty at first, and after a failure.
    """

    def __init__(self, warn: Callable[[str], object], root: Path = Path("/sys"), period_s: float = 2.0) -> None:
        self._warn, self._root, self._period_s = warn, root, period_s
        self._stop = threading.Event()
        self.latest = Reading()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()

    def statuses(self) -> Iterator[Status]:
        """The status; none for a computer without readable sensors."""
        reading = self.latest
        texts, warnings = [], [f"{name} is throttled: {reason}" for name, reason in reading.throttled.items()]
        values: dict[str, object] = {f"{name} throttled": reason for name, reason in reading.throttled.items()}
        values |= {f"{name} power (W)": f"{watts:.2f}" for name, watts in reading.power_w.items()}
        if (total_w := reading.total_w) is not None:
            values["power (W)"] = f"{total_w:.2f}"
            texts.append(f"{total_w:.1f} W")
        for name, (value, limit) in reading.temperatures_c.items():
            values[f"{name} temperature (C)"] = f"{value:.2f}"
            if limit is not None:
                values[f"{name} temperature limit (C)"] = f"{limit:.2f}"
                if value >= limit - _NEAR_LIMIT_C:
                    warnings.append(f"{name} has {value:.0f} degrees Celsius (limit {limit:.0f})")
        if reading.temperatures_c:
            texts.append(f"{max(value for value, _ in reading.temperatures_c.values()):.0f} C")
        if values:
            yield Status("board", WARN if warnings else OK, "; ".join(warnings or texts), values)

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; a driver that blocks may keep it alive."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        nvml: Any = None
        with suppress(Exception):  # no package nvidia-ml-py, no driver, or no GPU; NVMLError has a class for each code
            import pynvml  # slow on a machine with many GPUs

            pynvml.nvmlInit()
            nvml = pynvml
        try:
            while not self._stop.wait(self._period_s):
                reading = Reading()
                _read_rails(self._root, reading)
                _read_thermal_zones(self._root, reading)
                if nvml is not None:
                    _read_gpus(nvml, reading)
                self.latest = reading
        except Exception as error:
            self.latest = Reading()
            self._warn(f"the sensors of this computer cannot be read; /diagnostics has no status `board`: {error}")


def text_of(path: Path) -> str:
    """The text in a file of sysfs; empty if it cannot be read."""
    with suppress(OSError):  # some drivers answer EAGAIN or ENODATA
        return path.read_text(encoding="utf-8", errors="replace").strip()[:64]
    return ""


def _number(path: Path) -> float | None:
    text = text_of(path)
    return float(text) if text.lstrip("-").isdecimal() else None


def _read_thermal_zones(root: Path, reading: Reading) -> None:
    for folder in sorted((root / "class/thermal").glob("thermal_zone*")):
        value = _number(folder / "temp")
        if value is None or not -60_000 <= value <= 200_000:
            continue
        kinds = [kind for kind in folder.glob("trip_point_*_type") if text_of(kind) in _LIMITS]
        trips = [_number(kind.with_name(kind.name.replace("_type", "_temp"))) for kind in kinds]
        # Unset trip points hold 0, -274000 or 2**31.
        limits = [trip * 1e-3 for trip in trips if trip is not None and 40_000 <= trip <= 150_000]
        kind = text_of(folder / "type") or folder.name
        name = f"{kind}_{folder.name.removeprefix('thermal_zone')}" if kind in reading.temperatures_c else kind
        reading.temperatures_c[name] = value * 1e-3, min(limits, default=None)


def _read_rails(root: Path, reading: Reading) -> None:
    """The power rails of a Jetson that an INA3221 measures (hwmon, JetPack 5 and newer)."""
    for label in sorted((root / "class/hwmon").glob("hwmon*/in*_label")):
        folder, number = label.parent, label.name.removeprefix("in").removesuffix("_label")
        if text_of(folder / "name") != "ina3221":
            continue
        millivolts, milliamperes = (_number(folder / f"{kind}{number}_input") for kind in ("in", "curr"))
        if millivolts is not None and milliamperes is not None and min(millivolts, milliamperes) >= 0:
            reading.power_w[text_of(label) or label.name] = millivolts * milliamperes * 1e-6


def _read_gpus(nvml: Any, reading: Reading) -> None:
    """Power, temperature and throttling of all GPUs that the driver shows."""
    for number in range(nvml.nvmlDeviceGetCount()):
        name, gpu = f"GPU_{number}", nvml.nvmlDeviceGetHandleByIndex(number)
        if (milliwatts := _ask(nvml.nvmlDeviceGetPowerUsage, gpu)) is not None:
            reading.power_w[name] = milliwatts * 1e-3
        if (degrees := _ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)) is not None:
            limit = _ask(nvml.nvmlDeviceGetTemperatureThreshold, gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
            reading.temperatures_c[name] = degrees, limit
        reasons = int(_ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0)
        if texts := [text for bit, text in _THROTTLED.items() if reasons & bit]:
            reading.throttled[name] = ", ".join(texts)


def _ask(function: Any, *arguments: Any) -> float | None:
    """The result; None if the GPU does not support the query or is gone."""
    with suppress(Exception):  # NVMLError has a class for each code
        return float(function(*arguments))
    return None
