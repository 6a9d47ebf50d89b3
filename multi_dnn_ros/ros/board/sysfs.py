"""Sensors of the Linux kernel: thermal zones, clocks, RAPL, and the power rails of a Jetson.

The folders are found once; a sensor that appears later is not read. Sources: the kernel's documentation of sysfs
(thermal, powercap, hwmon, cpufreq, devfreq), and NVIDIA's Jetson Linux Developer Guide for ina3221 and soctherm_oc.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from multi_dnn_ros.ros.board.sensors import Faults, Reading, Source, Value, free_name, optional_number, text_of

#: Types of trip points at which the hardware is slowed down or switched off; at `active` ones a fan starts.
_LIMITS = ("passive", "hot", "critical")
#: Rails of a Jetson that measure the whole module; the other rails are parts of it.
_TOTAL_RAILS = ("VDD_IN", "POM_5V_IN")
_PLAUSIBLE_C = (-60.0, 200.0)
_PLAUSIBLE_W = 5000.0


class ThermalZones:
    """The zones of /sys/class/thermal. root: /sys, or a copy."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self._faults = faults
        self._zones: dict[str, tuple[Path, float | None]] = {}
        for folder in _folders(root / "class/thermal", "thermal_zone*"):
            name = free_name(text_of(folder / "type") or folder.name, self._zones)
            self._zones[name] = folder / "temp", _limit_c(folder)

    def read(self) -> Reading:
        """The temperatures."""
        found = {}
        for name, (path, limit) in self._zones.items():
            value = self._faults.number(path, *_PLAUSIBLE_C, scale=1e-3)
            if value is not None:
                found[name] = Value(value, limit)
        return Reading(temperatures_c=found)


class Clocks:
    """Clocks of the fastest CPU core and of devfreq devices (GPU, memory); throttling of Intel CPUs and Jetsons."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self._faults = faults
        cpus = _folders(root / "devices/system/cpu", "cpu[0-9]*")
        self._cpus = [folder / "cpufreq" for folder in cpus if (folder / "cpufreq/scaling_cur_freq").exists()]
        self._devices: dict[str, Path] = {}
        for folder in _folders(root / "class/devfreq", "*"):
            if (folder / "cur_freq").exists():
                name = folder.name.partition(".")[2] or folder.name  # 17000000.gpu
                self._devices[free_name(name, self._devices)] = folder
        self._counters = {
            "CPU": [path for folder in cpus for path in sorted(folder.glob("thermal_throttle/*_throttle_count"))],
            "board": [
                path
                for folder in _folders(root / "class/hwmon", "hwmon*")
                if text_of(folder / "name") == "soctherm_oc"
                for path in sorted(folder.glob("oc*_event_cnt"))
            ],
        }
        self._counts: dict[Path, float] = {}

    def read(self) -> Reading:
        """Clocks in MHz, and what was throttled since the last reading."""
        clocks = {}
        cores = [self._faults.number(folder / "scaling_cur_freq", 0.0, 1e5, 1e-3) for folder in self._cpus]
        known = [value for value in cores if value is not None]
        if known:
            limits = [optional_number(folder / "scaling_max_freq") for folder in self._cpus]
            limit = max((value for value in limits if value is not None), default=None)
            clocks["CPU"] = Value(max(known), None if limit is None else limit * 1e-3)
        for name, folder in self._devices.items():
            value = self._faults.number(folder / "cur_freq", 0.0, 1e5, 1e-6)
            if value is not None:
                limit = optional_number(folder / "max_freq")
                clocks[name] = Value(value, None if limit is None else limit * 1e-6)
        return Reading(clocks_mhz=clocks, throttled=self._throttled())

    def _throttled(self) -> dict[str, str]:
        reasons = {"CPU": "too hot", "board": "over-current"}
        found = {}
        for name, paths in self._counters.items():
            events = 0.0
            for path in paths:
                count = self._faults.number(path, 0.0, 2.0**64)
                if count is not None:
                    events += max(0.0, count - self._counts.get(path, count))
                    self._counts[path] = count
            if events:
                found[name] = f"{reasons[name]} ({events:.0f} events)"
        return found


class Rapl:
    """The power of CPU packages, from energy counters that often only root may read."""

    def __init__(self, root: Path, faults: Faults, clock: Callable[[], float]) -> None:
        self._faults = faults
        self._clock = clock
        self._packages: dict[str, tuple[Path, float]] = {}
        self._last: dict[str, tuple[float, float]] = {}  # time, joules
        for folder in _folders(root / "class/powercap", "intel-rapl:*"):
            if folder.name.count(":") > 1:  # a part of a package
                continue
            name = free_name(f"CPU_{text_of(folder / 'name') or folder.name}", self._packages)
            self._packages[name] = folder, (optional_number(folder / "max_energy_range_uj") or 0.0) * 1e-6

    def read(self) -> Reading:
        """The mean power since the last reading; the first reading is empty."""
        found = {}
        for name, (folder, range_j) in self._packages.items():
            joules = self._faults.number(folder / "energy_uj", 0.0, 1e18, 1e-6)
            if joules is None:
                self._last.pop(name, None)
                continue
            now = self._clock()
            before = self._last.get(name)
            self._last[name] = now, joules
            if before is None or now <= before[0]:
                continue
            used = joules - before[1]
            if used < 0:  # the counter has wrapped around
                used += range_j
            watts = used / (now - before[0])
            if 0 <= watts <= _PLAUSIBLE_W:
                limit = optional_number(folder / "constraint_0_power_limit_uw")
                found[name] = Value(watts, None if not limit else limit * 1e-6, cap=True)
        return Reading(power_w=found)


class JetsonRails:
    """The power rails that an INA3221 measures (hwmon, JetPack 5 and newer)."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self._faults = faults
        self._rails: dict[str, tuple[Path, str]] = {}
        for folder in _folders(root / "class/hwmon", "hwmon*"):
            if text_of(folder / "name") != "ina3221":
                continue
            for label in sorted(folder.glob("in*_label")):
                number = label.name.removeprefix("in").removesuffix("_label")
                if (folder / f"curr{number}_input").exists():
                    self._rails[free_name(text_of(label) or label.name, self._rails)] = folder, number

    def read(self) -> Reading:
        """The power of each rail, and its limit if the driver has a limit of the current."""
        found = {}
        for name, (folder, number) in self._rails.items():
            volts = self._faults.number(folder / f"in{number}_input", 0.0, 100.0, 1e-3)
            amperes = self._faults.number(folder / f"curr{number}_input", 0.0, 100.0, 1e-3)
            if volts is not None and amperes is not None:
                max_ma = optional_number(folder / f"curr{number}_max")
                found[name] = Value(volts * amperes, volts * max_ma * 1e-3 if max_ma else None)
        total = any(name in _TOTAL_RAILS for name in found)
        return Reading(power_w=found, parts=frozenset(name for name in found if total and name not in _TOTAL_RAILS))


def sysfs_sources(root: Path, faults: Faults, clock: Callable[[], float] = time.monotonic) -> list[Source]:
    """All sensors below root, normally /sys. clock: seconds, monotonic."""
    return [ThermalZones(root, faults), Clocks(root, faults), Rapl(root, faults, clock), JetsonRails(root, faults)]


def _folders(folder: Path, pattern: str) -> list[Path]:
    return sorted(_existing(folder, pattern), key=lambda path: (len(path.name), path.name))


def _existing(folder: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from folder.glob(pattern)
    except OSError:
        return


def _limit_c(zone: Path) -> float | None:
    """The lowest trip point at which the kernel or the hardware slows down or switches off."""
    limits = []
    for kind in zone.glob("trip_point_*_type"):
        if text_of(kind) in _LIMITS:
            value = optional_number(kind.with_name(kind.name.replace("_type", "_temp")))
            if value is not None and 40_000 <= value <= 150_000:  # unset trip points hold 0, -274000 or 2**31
                limits.append(value * 1e-3)
    return min(limits, default=None)
