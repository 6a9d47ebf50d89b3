"""Tables of measured times by batch size: one file per model, unit and precision."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.planning.checked_file import read_checked


class TableError(ValueError):
    """A table that cannot be used for what was asked; the message names the table, and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Spread(_Part):
    """Milliseconds: the quartiles of the samples."""

    p25: float = Field(ge=0.0)
    p50: float = Field(ge=0.0)
    p75: float = Field(ge=0.0)

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Of at least one sample."""
        p25, p50, p75 = (float(value) for value in np.percentile(np.asarray(samples, dtype=np.float64), (25, 50, 75)))
        return cls(p25=p25, p50=p50, p75=p75)


class Row(_Part):
    """One batch size. input, compute, output, total: of the whole batch; None where it failed.

    failure: why there are no times, "" otherwise. measured_at: ISO 8601, UTC.
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


class BatchTable(_Part):
    """Times of one model on one unit at one precision.

    shape: of one image as the network takes it, (3, height, width). parameters: how many the network has; with the
    shape they tell a model that was replaced by another of the same name. device: what the times depend on beside the
    model: processor or GPU, SMs, threads, backend and versions. rows: by rising batch size.
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
            raise ValueError("rows are not in the order of their batch sizes")
        return self

    @property
    def measured(self) -> tuple[Row, ...]:
        """Rows with times, up to the first one that failed."""
        good: list[Row] = []
        for row in self.rows:
            if row.failure:
                break
            good.append(row)
        return tuple(good)

    @property
    def largest(self) -> int:
        """The largest batch that the unit was seen to run; 0: none."""
        return self.measured[-1].batch if self.measured else 0

    def predict_ms(self, batch: int) -> float:
        """Milliseconds of a batch, transfers included: measured, or on the line between the two measured neighbours.

        0 for an empty batch. TableError above the largest measured batch.
        """
        if batch == 0:
            return 0.0
        rows = self.measured
        if not 0 < batch <= self.largest:
            raise TableError(f"{self.unit} was measured up to {self.largest} images of {self.model}, not {batch}")
        sizes = [row.batch for row in rows]
        place = bisect_left(sizes, batch)
        if sizes[place] == batch or place == 0:
            # Below the smallest measured batch nothing is known to be faster than that batch.
            return _total(rows[place])
        low, high = rows[place - 1], rows[place]
        part = (batch - low.batch) / (high.batch - low.batch)
        return _total(low) + part * (_total(high) - _total(low))

    def with_rows(self, rows: Iterable[Row]) -> BatchTable:
        """A copy in which these rows replace those of the same batch sizes."""
        known = {row.batch: row for row in (*self.rows, *rows)}
        return self.model_copy(update={"rows": tuple(known[batch] for batch in sorted(known))})

    def without(self, batches: Iterable[int]) -> BatchTable:
        """A copy without the rows of these batch sizes."""
        gone = set(batches)
        return self.model_copy(update={"rows": tuple(row for row in self.rows if row.batch not in gone)})

    def require_same(self, other: BatchTable, where: str) -> None:
        """TableError unless `other` is of the same model, unit, precision, device and versions. where: its file."""
        for field in ("model", "shape", "parameters", "unit", "precision", "device"):
            own, theirs = getattr(self, field), getattr(other, field)
            if own != theirs:
                raise TableError(
                    f"{where} is a table of {field} '{theirs}', not '{own}'; measure again with --replace, or name "
                    "another folder with --tables"
                )


def _total(row: Row) -> float:
    if row.total is None:
        raise TableError(f"batch {row.batch} has no times")
    return row.total.p50


def batch_sizes(most: int) -> tuple[int, ...]:
    """1, then 2^n - 1, 2^n, 2^n + 1 for every n >= 1, up to `most`, and `most` itself: where times change most."""
    sizes = {1, most}
    power = 2
    while power - 1 <= most:
        sizes |= {size for size in (power - 1, power, power + 1) if size <= most}
        power *= 2
    return tuple(sorted(sizes))


def default_folder() -> Path:
    """Where tables are kept."""
    return cache_folder() / "partition"


def table_path(folder: Path, model: str, unit: str, precision: str) -> Path:
    """The file of a table: a folder per model, a file per unit and precision."""
    return folder / _file_name(model) / f"{_file_name(unit)}.{precision}.json"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name.replace(":", "-").replace("/", "="))


def read_table(path: Path) -> BatchTable:
    """A table that write_table wrote. ProfileError names the file and what is wrong."""
    return read_checked(path, BatchTable, "table of batch times", "multi-dnn partition profile")


def write_table(path: Path, table: BatchTable) -> None:
    """As JSON; a reader meets the old file or the new one. Folders are made."""
    write_json(path, table.model_dump(mode="json", exclude_defaults=False))


_PARTS = ("input", "compute", "output", "total")
CSV_HEADER = (
    "model", "unit", "precision", "batch", "samples",
    *(f"{part}_{quartile}_ms" for part in _PARTS for quartile in ("p25", "p50", "p75")),
    "failure", "measured_at", "device",
)  # fmt: skip


def csv_rows(tables: Iterable[BatchTable]) -> list[tuple[str, ...]]:
    """Cells of CSV_HEADER, a row per table and batch size; times are empty where the batch failed."""
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
