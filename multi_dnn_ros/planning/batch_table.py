"""Tables of measured times by batch size; one file per model, unit and precision."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from pydantic import Field, model_validator

from multi_dnn_ros.common.file_lock import lock_file
from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.planning.checked_file import read_checked
from multi_dnn_ros.planning.file_model import FileModel


class TableError(ValueError):
    """A table cannot answer the request; the message names the table and what to do."""


class Spread(FileModel):
    """Quartiles of the samples, in milliseconds."""

    p25: float = Field(ge=0.0)
    p50: float = Field(ge=0.0)
    p75: float = Field(ge=0.0)

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Quartiles of at least one sample."""
        p25, p50, p75 = (float(value) for value in np.percentile(np.asarray(samples, dtype=np.float64), (25, 50, 75)))
        return cls(p25=p25, p50=p50, p75=p75)


class Row(FileModel):
    """Times of one batch size. input, compute, output, total: times of the whole batch; None if the measurement failed.

    failure: reason of the failure, otherwise "". measured_at: ISO 8601, UTC.
    """

    batch: int = Field(ge=1)
    samples: int = Field(ge=0)
    input: Spread | None = None
    compute: Spread | None = None
    output: Spread | None = None
    total: Spread | None = None
    failure: str = ""
    measured_at: str = ""

    @model_validator(mode="after")
    def _check(self) -> Row:
        times = (self.input, self.compute, self.output, self.total)
        if self.failure and any(times):
            raise ValueError(f"batch {self.batch} has times and a failure")
        if not self.failure and not (all(times) and self.samples):
            raise ValueError(f"batch {self.batch} has neither all times nor a failure")
        return self


class BatchTable(FileModel):
    """Times of one model on one unit at one precision.

    shape: the network's input for one image, (3, height, width). parameters: number of the network's parameters;
    together with the shape it reveals a different model of the same name. device: processor or GPU, SMs, threads,
    backend and versions, because the times depend on them. rows: by increasing batch size.
    """

    format: Literal["multi_dnn_ros batch times 1"] = "multi_dnn_ros batch times 1"
    model: str
    shape: tuple[int, int, int]
    parameters: int = Field(ge=0)
    unit: str
    precision: str
    device: str
    rows: tuple[Row, ...] = ()
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> BatchTable:
        sizes = [row.batch for row in self.rows]
        if sizes != sorted(set(sizes)):
            raise ValueError("rows are not sorted by batch size")
        for row in self.rows:
            if row.total is not None and row.total.p50 == 0.0:  # plans are compared by ratios of times
                raise ValueError(f"batch {row.batch} took 0 ms in total; allowed: more than 0")
        return self

    @property
    def measured(self) -> tuple[Row, ...]:
        """Rows with times, before the first failure."""
        measured: list[Row] = []
        for row in self.rows:
            if row.failure:
                break
            measured.append(row)
        return tuple(measured)

    @property
    def largest(self) -> int:
        """The largest batch measured without failure; 0 if there is none."""
        return self.measured[-1].batch if self.measured else 0

    def predict_ms(self, batch: int) -> float:
        """Milliseconds of a batch, transfers included: measured, or interpolated linearly between measured batch sizes.

        0 for an empty batch. Raises TableError above the largest measured batch.
        """
        if batch == 0:
            return 0.0
        rows = self.measured
        if not 0 < batch <= self.largest:
            raise TableError(f"{self.unit} was measured up to {self.largest} images of {self.model}, not {batch}")
        sizes = [row.batch for row in rows]
        index = bisect_left(sizes, batch)
        if sizes[index] == batch or index == 0:
            # A batch below the smallest measured one is assumed to take as long.
            return _total(rows[index])
        low, high = rows[index - 1], rows[index]
        fraction = (batch - low.batch) / (high.batch - low.batch)
        return _total(low) + fraction * (_total(high) - _total(low))

    def with_rows(self, rows: Iterable[Row]) -> BatchTable:
        """A copy with these rows added; they replace existing rows of the same batch size."""
        known = {row.batch: row for row in (*self.rows, *rows)}
        return self.model_copy(update={"rows": tuple(known[batch] for batch in sorted(known))})

    def without(self, batches: Iterable[int]) -> BatchTable:
        """A copy without the rows of these batch sizes."""
        removed = set(batches)
        return self.model_copy(update={"rows": tuple(row for row in self.rows if row.batch not in removed)})

    def require_same(self, other: BatchTable, where: str) -> None:
        """Raise TableError unless `other` has the same model, unit, precision and device. where: file of `other`."""
        for field in ("model", "shape", "parameters", "unit", "precision", "device"):
            expected, found = getattr(self, field), getattr(other, field)
            if expected != found:
                raise TableError(
                    f"{where} is a table of {field} '{found}', not '{expected}'; start a new table with `multi-dnn "
                    "partition profile --replace`, or name another folder with --tables"
                )


def _total(row: Row) -> float:
    if row.total is None:
        raise TableError(f"batch {row.batch} has no times")
    return row.total.p50


def sizes_to_measure(largest: int) -> tuple[int, ...]:
    """Batch sizes to measure: 1, `largest`, and around powers of 2, where times change most (2^n - 1, 2^n, 2^n + 1)."""
    sizes = {1, largest}
    power = 2
    while power - 1 <= largest:
        sizes |= {size for size in (power - 1, power, power + 1) if size <= largest}
        power *= 2
    return tuple(sorted(sizes))


def default_folder() -> Path:
    """Default folder of the tables."""
    return cache_folder() / "partition"


def table_path(folder: Path, model: str, unit: str, precision: str) -> Path:
    """Path of a table: a folder per model, a file per unit and precision."""
    return folder / _file_name(model) / f"{_file_name(unit)}.{precision}.json"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name.replace(":", "-").replace("/", "="))


def read_table(path: Path) -> BatchTable:
    """Read a file of write_table. Raises ProfileError, which names the file and the problem."""
    return read_checked(path, BatchTable, "table of batch times", "multi-dnn partition profile")


def lock_table(path: Path) -> TextIO:
    """Lock a table that is read, changed and written again, until the returned file is closed.

    Raises CommandError if another command has locked it, OSError if its folder cannot be written.
    """
    taken = f"{path} is being measured or changed by another command; wait until it has ended"
    return lock_file(path.with_name(f".{path.name}.lock"), taken, "do not change the table by two commands at once")


def write_table(path: Path, table: BatchTable) -> None:
    """Write a table as JSON, atomically. Creates the folders."""
    write_json(path, table.model_dump(mode="json", exclude_defaults=False))


_PARTS = ("input", "compute", "output", "total")
CSV_HEADER = (
    "model", "unit", "precision", "batch", "samples",
    *(f"{part}_{quartile}_ms" for part in _PARTS for quartile in ("p25", "p50", "p75")),
    "failure", "measured_at", "device",
)  # fmt: skip


def csv_rows(tables: Iterable[BatchTable]) -> list[tuple[str, ...]]:
    """Rows under CSV_HEADER, one per table and batch size; the times of a failed batch are empty."""
    lines = []
    for table in tables:
        for row in table.rows:
            times = [
                "" if spread is None else f"{value:.6g}"
                for spread in (row.input, row.compute, row.output, row.total)
                for value in ((spread.p25, spread.p50, spread.p75) if spread else ("", "", ""))
            ]
            lines.append((table.model, table.unit, table.precision, str(row.batch), str(row.samples), *times,
                          row.failure, row.measured_at, table.device))  # fmt: skip
    return lines
