"""The sensors of the computer: thermal zones, the power rails of a Jetson, and NVIDIA GPUs through NVML.

A sensor that cannot be read, or holds no plausible value, is left out. Sources: the kernel's documentation of sysfs
(thermal, hwmon), and NVIDIA's Jetson Linux Developer Guide for ina3221.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import MissingExtra, optional

#: Warning thresholds: distance of a temperature from its limit in degrees Celsius, and power as a share of its limit.
NEAR_LIMIT_C, NEAR_LIMIT_SHARE = 5.0, 0.95
#: Types of trip points at which the hardware is slowed down or switched off; at `active` ones a fan starts.
_LIMITS = ("passive", "hot", "critical")
#: Rails of a Jetson that measure the whole module; the other rails are parts of it.
_TOTAL_RAILS = ("VDD_IN", "POM_5V_IN")
#: Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean heat or a power failure, and their text. The ordinary
#: power cap (4) is left out, because a busy GPU always runs at it.
_THROTTLED = {0x08: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake"}
_TEMPERATURE_GPU, _THRESHOLD_SLOWDOWN, _CLOCK_SM = 0, 1, 1


@dataclass(frozen=True)
class Value:
    """limit: value above which the hardware protects itself, in the same unit; None: unknown. cap: the hardware keeps
    itself below the limit, so that reaching it under load is normal.
    """

    value: float
    limit: float | None = None
    cap: bool = False


@dataclass(frozen=True)
class Reading:
    """Values by name of the sensor. power_w: watts. parts: names in `power_w` whose power is included in another's.
    temperatures_c: degrees Celsius. clocks_mhz: limit is the highest clock that the settings allow. throttled: why the
    hardware has lowered its clocks.
    """

    power_w: Mapping[str, Value] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    temperatures_c: Mapping[str, Value] = field(default_factory=dict)
    clocks_mhz: Mapping[str, Value] = field(default_factory=dict)
    throttled: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_w(self) -> float | None:
        """Sum of all powers that are not included in another one; None: no power is known."""
        values = [power.value for name, power in self.power_w.items() if name not in self.parts]
        return sum(values) if values else None

    def warnings(self) -> list[str]:
        """What is near its limit or throttled, one text each."""
        found = [f"{name} is throttled: {reason}" for name, reason in self.throttled.items()]
        for name, value in self.temperatures_c.items():
            if value.limit is not None and value.value >= value.limit - NEAR_LIMIT_C:
                found.append(f"{name} has {value.value:.0f} degrees Celsius (limit {value.limit:.0f})")
        for name, value in self.power_w.items():
            if value.limit is not None and not value.cap and value.value >= NEAR_LIMIT_SHARE * value.limit:
                found.append(f"{name} takes {value.value:.1f} W (limit {value.limit:.1f})")
        return found


def read_sensors(root: Path, nvml: Any) -> Reading:
    """All sensors. root: /sys, or a copy of it. nvml: see :func:`load_nvml`."""
    rails = _rails(root)
    has_total = any(name in _TOTAL_RAILS for name in rails)
    gpus = _Gpus(nvml)
    return Reading(
        rails | gpus.power_w,
        frozenset(name for name in rails if has_total and name not in _TOTAL_RAILS),
        _thermal_zones(root) | gpus.temperatures_c,
        gpus.clocks_mhz,
        gpus.throttled,
    )


def load_nvml() -> Any:
    """The module pynvml, initialized; None without the package nvidia-ml-py, a driver or a GPU."""
    try:
        with optional("the power of NVIDIA GPUs"):
            import pynvml  # slow on a machine with many GPUs
    except MissingExtra:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or no GPU
        return None
    return pynvml


def text_of(path: Path) -> str:
    """The text in a file of sysfs; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:64]
    except OSError:
        return ""


def optional_number(path: Path) -> float | None:
    """The number in a file of sysfs; None if there is none."""
    try:
        value = float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # some drivers answer EAGAIN or ENODATA
        return None
    return value if abs(value) < float("inf") else None


def _thermal_zones(root: Path) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for folder in _folders(root / "class/thermal", "thermal_zone*"):
        value = optional_number(folder / "temp")
        if value is not None and -60_000 <= value <= 200_000:
            limits = [
                limit * 1e-3
                for kind in folder.glob("trip_point_*_type")
                if text_of(kind) in _LIMITS
                and (limit := optional_number(kind.with_name(kind.name.replace("_type", "_temp")))) is not None
                and 40_000 <= limit <= 150_000  # unset trip points hold 0, -274000 or 2**31
            ]
            name = _free_name(text_of(folder / "type") or folder.name, found)
            found[name] = Value(value * 1e-3, min(limits, default=None))
    return found


def _rails(root: Path) -> dict[str, Value]:
    """The power rails of a Jetson that an INA3221 measures (hwmon, JetPack 5 and newer)."""
    found: dict[str, Value] = {}
    for folder in _folders(root / "class/hwmon", "hwmon*"):
        if text_of(folder / "name") != "ina3221":
            continue
        for label in sorted(folder.glob("in*_label")):
            number = label.name.removeprefix("in").removesuffix("_label")
            millivolts = optional_number(folder / f"in{number}_input")
            milliamperes = optional_number(folder / f"curr{number}_input")
            if millivolts is not None and milliamperes is not None and min(millivolts, milliamperes) >= 0:
                limit_ma = optional_number(folder / f"curr{number}_max")
                limit_w = millivolts * limit_ma * 1e-6 if limit_ma else None
                name = _free_name(text_of(label) or label.name, found)
                found[name] = Value(millivolts * milliamperes * 1e-6, limit_w)
    return found


class _Gpus:
    """Power, temperature, clock and throttling of all GPUs that the driver shows."""

    def __init__(self, nvml: Any) -> None:
        self.power_w: dict[str, Value] = {}
        self.temperatures_c: dict[str, Value] = {}
        self.clocks_mhz: dict[str, Value] = {}
        self.throttled: dict[str, str] = {}
        for number in range(nvml.nvmlDeviceGetCount() if nvml is not None else 0):
            name, gpu = f"GPU_{number}", nvml.nvmlDeviceGetHandleByIndex(number)
            if (milliwatts := _ask(nvml.nvmlDeviceGetPowerUsage, gpu)) is not None:
                limit = _ask(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
                self.power_w[name] = Value(milliwatts * 1e-3, limit * 1e-3 if limit else None, cap=True)
            if (degrees := _ask(nvml.nvmlDeviceGetTemperature, gpu, _TEMPERATURE_GPU)) is not None:
                limit = _ask(nvml.nvmlDeviceGetTemperatureThreshold, gpu, _THRESHOLD_SLOWDOWN)
                self.temperatures_c[name] = Value(degrees, limit)
            if (clock := _ask(nvml.nvmlDeviceGetClockInfo, gpu, _CLOCK_SM)) is not None:
                self.clocks_mhz[name] = Value(clock, _ask(nvml.nvmlDeviceGetMaxClockInfo, gpu, _CLOCK_SM))
            reasons = int(_ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0)
            if texts := [text for bit, text in _THROTTLED.items() if reasons & bit]:
                self.throttled[name] = ", ".join(texts)


def _ask(function: Any, *arguments: Any) -> float | None:
    """The result; None if the GPU does not support the query or is gone."""
    try:
        return float(function(*arguments))
    except Exception:  # NVMLError has a class for each code
        return None


def _folders(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """`name` with letters, digits and _ only, and with a number appended if it is in `taken`."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "unnamed"
    number, free = 1, plain
    while free in taken:
        number += 1
        free = f"{plain}_{number}"
    return free
