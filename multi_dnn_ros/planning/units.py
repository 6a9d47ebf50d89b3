"""Units: devices by the names that parameters and commands use. This module does not import PyTorch.

``cpu`` is all cores, ``cpu:8`` a CPU with 8 threads, ``cuda:0`` a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

UNIT_FORMS = "cpu, cpu:<threads>, cuda, cuda:<number>"


class UnitError(ValueError):
    """A unit is invalid; the message names the unit and what is allowed."""


@dataclass(frozen=True)
class Unit:
    """One unit.

    name: normalized, so that equal units have equal names. device: PyTorch's name. threads: per CPU operation; 0: one
    per core. provider: the execution provider of ONNX Runtime to use; "": the automatic backend of the device.
    """

    name: str
    device: str
    threads: int = 0
    provider: str = ""


def parse_unit(text: str) -> Unit:
    """The unit with this name. Raises UnitError."""
    match = re.fullmatch(r"(cpu)(?::([1-9][0-9]{0,3}))?|(cuda)(?::([0-9]{1,3}))?", text)
    if match is None:
        raise UnitError(f"unit '{text}' is not known; allowed: {UNIT_FORMS}")
    if match[1]:
        return Unit(text, "cpu", threads=int(match[2] or 0))
    device = f"cuda:{int(match[4] or 0)}"
    return Unit(device, device)


def sharing_warnings(units: Sequence[Unit], cores: int) -> list[str]:
    """A warning if CPU units together have more threads than there are cores, because they slow each other down."""
    threads = {unit.name: unit.threads or cores for unit in units if unit.device == "cpu"}
    if len(threads) < 2 or sum(threads.values()) <= cores:
        return []
    return [
        f"{' and '.join(threads)} together have {sum(threads.values())} threads on {cores} cores: they slow each other "
        "down, which their separately measured times do not show; use units with fewer threads"
    ]
