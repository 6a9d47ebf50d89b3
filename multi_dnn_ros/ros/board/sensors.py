"""What is read from the computer's sensors, and how a sensor that fails is reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

#: Warning thresholds: distance of a temperature from its limit in degrees Celsius, and power as a share of its limit.
NEAR_LIMIT_C, NEAR_LIMIT_SHARE = 5.0, 0.95


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
    hardware has lowered its clocks since the last reading.
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


def merged(readings: list[Reading]) -> Reading:
    """The readings of all sources as one."""
    return Reading(
        {name: value for each in readings for name, value in each.power_w.items()},
        frozenset(name for each in readings for name in each.parts),
        {name: value for each in readings for name, value in each.temperatures_c.items()},
        {name: value for each in readings for name, value in each.clocks_mhz.items()},
        {name: reason for each in readings for name, reason in each.throttled.items()},
    )


class Source(Protocol):
    """A group of sensors. `read` never raises: it reports a sensor that fails, and leaves it out."""

    def read(self) -> Reading: ...


class Faults:
    """Reports a sensor that cannot be read or holds no plausible value, once for each sensor.

    report: receives one line.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._known: set[str] = set()

    def add(self, sensor: str, problem: object) -> None:
        """The sensor failed."""
        if sensor not in self._known:
            self._known.add(sensor)
            self._report(f"sensor {sensor} is left out of the diagnostics while it cannot be read: {problem}")

    def number(self, path: Path, low: float, high: float, scale: float = 1.0) -> float | None:
        """The number in a file of sysfs times `scale`; None, after a report, if there is none in this range."""
        try:
            text = path.read_text(encoding="ascii")
            value = float(text) * scale
        except (OSError, ValueError) as error:  # some drivers answer EAGAIN or ENODATA
            self.add(str(path), error)
            return None
        if not low <= value <= high:  # also NaN
            self.add(str(path), f"implausible value {text.strip()[:40]!r}")
            return None
        return value


def text_of(path: Path) -> str:
    """The text in a file of sysfs; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:64]
    except OSError:
        return ""


def optional_number(path: Path) -> float | None:
    """The number in a file of sysfs that need not exist; None if there is none."""
    try:
        value = float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return value if abs(value) < float("inf") else None


def free_name(name: str, taken: Mapping[str, object]) -> str:
    """`name` with letters, digits and _ only, and with a number appended if it is in `taken`."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "unnamed"
    number, free = 1, plain
    while free in taken:
        number += 1
        free = f"{plain}_{number}"
    return free
