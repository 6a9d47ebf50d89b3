"""Compares two files of `multi-dnn benchmark`: figures with units and directions, case by case.

A scenario that can be compared has a function in `_READERS`, which makes cases of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from multi_dnn_ros.benchmark.board.reading import first_problem, parse_board
from multi_dnn_ros.benchmark.board.record import SCENARIO as BOARD
from multi_dnn_ros.benchmark.board.report import board_lines, figures_of, status_text
from multi_dnn_ros.benchmark.quantities import (
    CPU_PER_FRAME,
    CPU_PER_RESULT,
    LATENCY_P50,
    LATENCY_P95,
    LATENCY_P99,
    MEMORY,
    MIB,
    QUANTITIES,
    RESULTS,
    Quantity,
)
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.json_files import read_json_object

HOST = "host"
#: Figures that differ by less are called the same: the rate is searched with this precision.
SAME = 0.05

Verdict = Literal["better", "worse", "same", ""]


@dataclass(frozen=True)
class Case:
    """One mix or case of a file. conditions: what must be equal for a comparison. reason: why it has no figures."""

    conditions: Mapping[str, str]
    figures: Mapping[Quantity, float | None]
    reason: str = ""


@dataclass(frozen=True)
class Measured:
    """The content of one file. runtime: the ROS runtime. origin: machine and versions, as (name, value)."""

    path: Path
    scenario: str
    runtime: str
    origin: Sequence[tuple[str, str]]
    cases: Mapping[str, Case]


@dataclass(frozen=True)
class Row:
    """One figure of both files. ratio: second / first."""

    case: str
    quantity: Quantity
    first: float
    second: float

    @property
    def ratio(self) -> float:
        return self.second / self.first

    @property
    def worse_by(self) -> float | None:
        """Factor, above 1 if the second is worse; None for a figure that cannot be better or worse."""
        better = self.quantity.better
        return {"higher": 1.0 / self.ratio, "lower": self.ratio}[better] if better else None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the second file."""
        worse_by = self.worse_by
        if worse_by is None:
            return ""
        return "worse" if worse_by > 1.0 + SAME else "better" if worse_by < 1.0 / (1.0 + SAME) else "same"


@dataclass
class Comparison:
    """rows: figures that can be compared. not_comparable: one line each for what cannot. lost: cases with figures
    in the first file and none in the second, under equal conditions.
    """

    first: Measured
    second: Measured
    rows: list[Row] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def failing(self, limit: float, figures: Sequence[str] = ()) -> list[Row]:
        """Rows whose figure is worse by more than this factor. figures: their names; empty: all that can be worse."""
        return [
            row
            for row in self.rows
            if row.worse_by is not None and row.worse_by > limit and (not figures or row.quantity.name in figures)
        ]


def read_measured(path: Path) -> Measured:
    """Read a file of a scenario that can be compared. Raises UsageError, one line, for any other file."""
    content = read_json_object(path, "figures of `multi-dnn benchmark`", UsageError)
    reader = _READERS.get(str(content.get("scenario")))
    if reader is None:
        name = content.get("scenario")
        written = (
            f"was written by `multi-dnn benchmark {name}`"
            if isinstance(name, str)
            else "was not written by `multi-dnn benchmark`"
        )
        allowed = " and ".join(f"`multi-dnn benchmark {each}`" for each in _READERS)
        raise UsageError(f"{path} {written}; only files of {allowed} can be compared")
    return reader(content, path)


def compare(first: Measured, second: Measured) -> Comparison:
    """Every figure of the cases that both files have under equal conditions.

    Raises UsageError if the files are of different scenarios.
    """
    if first.scenario != second.scenario:
        raise UsageError(
            f"{first.path} was written by `multi-dnn benchmark {first.scenario}`, {second.path} by "
            f"`multi-dnn benchmark {second.scenario}`; both must be of the same scenario"
        )
    found = Comparison(first, second)
    if first.runtime != second.runtime:
        found.not_comparable.append(
            f"everything: the ROS runtime is {first.runtime} in the first file and {second.runtime} in the second"
        )
        return found
    for name in dict.fromkeys((*first.cases, *second.cases)):
        first_case, second_case = first.cases.get(name), second.cases.get(name)
        if first_case is None or second_case is None:
            found.not_comparable.append(f"{name}: only in the {'second' if first_case is None else 'first'} file")
            continue
        reasons = [
            f"{which} file has no figures: {case.reason}"
            for which, case in (("the first", first_case), ("the second", second_case))
            if case.reason
        ]
        different = _differences(first_case.conditions, second_case.conditions)
        if second_case.reason and not first_case.reason and not different:
            found.lost.append(name)
        reasons += different
        if reasons:
            found.not_comparable.append(f"{name}: {'; '.join(reasons)}")
        else:
            _add_rows(found, name, first_case, second_case)
    return found


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Conditions that both files state, and that differ. A mix that was never started does not state its DNNs."""
    return [
        f"{key} is {first[key]} and {second[key]}"
        for key in first
        if first[key] and second.get(key) and first[key] != second[key]
    ]


def _add_rows(found: Comparison, name: str, first_case: Case, second_case: Case) -> None:
    for quantity in QUANTITIES:
        first, second = first_case.figures.get(quantity), second_case.figures.get(quantity)
        if first is None and second is None:
            continue
        if first is None or second is None:
            found.not_comparable.append(
                f"{name}, {quantity.text}: not measured in the {'first' if first is None else 'second'} file"
            )
        elif first > 0.0 and second > 0.0:
            found.rows.append(Row(name, quantity, first, second))
        else:
            found.not_comparable.append(f"{name}, {quantity.text}: {first:g} and {second:g} have no ratio")


# -- readers of scenarios


def _read_board(content: dict[str, Any], path: Path) -> Measured:
    record = parse_board(content, path)
    cases = {}
    for name, mix in record.mixes.items():
        conditions = {
            "number of cameras": str(mix.cameras),
            "image size": "x".join(map(str, mix.size)),
            "encoding": mix.encoding,
            "the set of DNNs": ", ".join(mix.dnns.values()),
        }
        reason = "" if mix.at_highest is not None else status_text(mix)
        cases[name] = Case(conditions, figures_of(mix), reason)
    return Measured(path, BOARD, record.board.runtime, board_lines(record), cases)


class _HostPart(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _HostLatency(_HostPart):
    p50: float
    p95: float
    p99: float


class _HostProcess(_HostPart):
    memory_bytes: float


class _HostCase(_HostPart):
    preset: str
    cameras: int
    size: tuple[int, int]
    encoding: str
    rate_hz: float
    results_hz: float
    cpu_ms_per_result: float | None
    cpu_ms_per_frame: float
    latency_ms: _HostLatency | None
    processes: dict[str, _HostProcess]


class _HostFile(_HostPart):
    runtime: str
    machine: dict[str, str | int | float | None]
    versions: dict[str, str]
    cases: dict[str, _HostCase]


def _read_host(content: dict[str, Any], path: Path) -> Measured:
    try:
        record = _HostFile.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path} is damaged, or of another version: {first_problem(error)}") from None
    cases = {}
    for name, case in record.cases.items():
        conditions = {
            "preset": case.preset,
            "number of cameras": str(case.cameras),
            "image size": "x".join(map(str, case.size)),
            "encoding": case.encoding,
            "rate": f"{case.rate_hz:g} Hz",
        }
        memory_bytes = sum(
            process.memory_bytes for name, process in case.processes.items() if not name.startswith("camera")
        )
        latency = case.latency_ms
        figures: dict[Quantity, float | None] = {
            RESULTS: case.results_hz if latency is not None else None,
            LATENCY_P50: latency.p50 if latency is not None else None,
            LATENCY_P95: latency.p95 if latency is not None else None,
            LATENCY_P99: latency.p99 if latency is not None else None,
            CPU_PER_RESULT: case.cpu_ms_per_result,
            CPU_PER_FRAME: case.cpu_ms_per_frame,
            MEMORY: memory_bytes / MIB,
        }
        cases[name] = Case(conditions, figures)
    origin = [(name, str(value)) for name, value in record.machine.items() if value is not None]
    origin.append(("ROS runtime", record.runtime))
    origin.append(("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())))
    return Measured(path, HOST, record.runtime, origin, cases)


_READERS: dict[str, Callable[[dict[str, Any], Path], Measured]] = {BOARD: _read_board, HOST: _read_host}
