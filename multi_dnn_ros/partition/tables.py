"""Tables of measured times by batch size; one JSON file per model, unit and precision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from multi_dnn_ros.common.reporting import write_json

FloatArray = npt.NDArray[np.float64]


class TableError(ValueError):
    """A table is missing, damaged or of something else; the message names its file and what to do."""


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Row(_Content):
    """Times of one batch size: medians of `samples` runs, for the whole batch, in milliseconds.

    input_ms: images to the unit. compute_ms: the network. output_ms: outputs to host memory. total_ms: all of it as the
    host sees it, including launching and waking up. spread_ms: half the interquartile range of the total.
    """

    batch: int = Field(ge=1)
    samples: int = Field(ge=1)
    input_ms: float = Field(ge=0.0)
    compute_ms: float = Field(ge=0.0)
    output_ms: float = Field(ge=0.0)
    total_ms: float = Field(gt=0.0)
    spread_ms: float = Field(ge=0.0)


class BatchTable(_Content):
    """Times of one model on one unit at one precision.

    shape: the network's input for one image, (3, height, width). parameters: number of the network's parameters, which
    with the shape reveals another model of the same name. device: what else the times depend on: processor or GPU,
    threads, backend, versions. rows: by increasing batch size. too_large: the smallest batch size that did not fit into
    memory; 0: none is known.
    """

    format: Literal["multi_dnn_ros batch times 2"] = "multi_dnn_ros batch times 2"
    model: str
    unit: str
    precision: str
    shape: tuple[int, int, int]
    parameters: int = Field(ge=0)
    device: str
    rows: tuple[Row, ...] = ()
    too_large: int = Field(default=0, ge=0)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> BatchTable:
        sizes = [row.batch for row in self.rows]
        if sizes != sorted(set(sizes)):
            raise ValueError("rows are not sorted by batch size")
        return self

    @property
    def largest(self) -> int:
        """The largest measured batch; 0 if there is none."""
        return self.rows[-1].batch if self.rows else 0

    def times_ms(self, batch: int) -> FloatArray:
        """(batch + 1,) milliseconds by number of images: measured, or interpolated linearly between measured sizes.

        0 without images; fewer images than the smallest measured batch are assumed to take as long as that one;
        infinite above the largest.
        """
        counts = np.arange(batch + 1)
        if not self.rows:
            return np.where(counts > 0, np.inf, 0.0)
        sizes, totals = [row.batch for row in self.rows], [row.total_ms for row in self.rows]
        times = np.interp(counts, sizes, totals, right=np.inf)
        times[0] = 0.0
        return times

    def with_rows(self, rows: Iterable[Row]) -> BatchTable:
        """A copy with these rows added; they replace rows of the same batch sizes."""
        known = {row.batch: row for row in (*self.rows, *rows)}
        return self.model_copy(update={"rows": tuple(known[batch] for batch in sorted(known))})

    def check_same(self, other: BatchTable, where: Path) -> None:
        """Raise TableError unless `other`, stored in the file `where`, is of the same network on the same device."""
        for field in ("model", "unit", "precision", "shape", "parameters", "device"):
            expected, found = getattr(self, field), getattr(other, field)
            if expected != found:
                raise TableError(
                    f"{where} has times of {field} '{found}', and now it is '{expected}': remove the file and measure "
                    "again with `multi-dnn partition profile`, or name another folder with --tables"
                )


def sizes_to_measure(largest: int) -> tuple[int, ...]:
    """1, `largest`, and powers of two with both neighbours, where times change most."""
    powers = (1 << exponent for exponent in range(largest.bit_length() + 1))
    sizes = {1, largest, *(size for power in powers for size in (power - 1, power, power + 1))}
    return tuple(sorted(size for size in sizes if 1 <= size <= largest))


def table_path(folder: Path, model: str, unit: str, precision: str) -> Path:
    """Path of a table: a folder per model, a file per unit and precision."""
    return folder / _file_name(model) / f"{_file_name(unit)}.{precision}.json"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name.replace(":", "-").replace("/", "="))


def write_table(path: Path, table: BatchTable) -> None:
    """Write a table as JSON, atomically. Creates the folders."""
    write_json(path, table.model_dump(mode="json"))


def read_table(path: Path) -> BatchTable:
    """Read a file of write_table. Raises TableError if it is not one, OSError if it cannot be read."""
    try:
        return BatchTable.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TableError(
            f"{path} is not a table of this version of `multi-dnn partition profile`: {where}{': ' * bool(where)}"
            f"{first['msg']}; remove the file and measure again"
        ) from None


def find_tables(folder: Path, model: str, precision: str, units: Sequence[str] = ()) -> dict[str, BatchTable]:
    """Tables by unit: of `units`, or of all units that have one. Raises TableError if there is none, and as read_table.

    All are of one network; the first decides which.
    """
    stored = table_path(folder, model, "any", precision).parent.glob(f"*.{precision}.json")
    paths = [table_path(folder, model, unit, precision) for unit in units] or sorted(stored)
    tables: dict[str, BatchTable] = {}
    for path in filter(Path.exists, paths):
        table = read_table(path)
        first = next(iter(tables.values()), table)
        any_unit = {"model": model, "precision": precision, "unit": table.unit, "device": table.device}
        first.model_copy(update=any_unit).check_same(table, path)
        tables[table.unit] = table
    if missing := [unit for unit in units if unit not in tables] or ["any unit"] * (not tables):
        raise TableError(
            f"there is no table of {model} on {missing[0]} at precision {precision} in {folder}; measure one with "
            "`multi-dnn partition profile`"
        )
    return tables
