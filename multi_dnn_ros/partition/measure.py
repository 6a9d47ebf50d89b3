"""Measure one unit by batch size: its table for plans, or the time to copy images to it and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros.partition.pool import OutOfMemory, UnitPool
from multi_dnn_ros.partition.tables import BatchTable, Row, read_table, table_path, write_table
from multi_dnn_ros.partition.worker import Network, NetworkRequest, Times
from multi_dnn_ros.planning.units import Unit


def measure_unit(
    unit: Unit,
    request: NetworkRequest,
    batches: Iterable[int],
    samples: int,
    folder: Path | None,
    provenance: dict[str, Any],
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> BatchTable:
    """Measure the batch sizes that are missing in the unit's table in `folder`, and return it.

    The table is written after each size, so that an interrupted measurement continues where it stopped. A size that
    does not fit into memory is noted, and larger ones are not tried, now or later. folder: None only measures how long
    the images take to the unit and back, without running the network, and stores nothing.

    Raises TableError for a stored table of another network, device or version, UnitFailure for a unit that fails for
    another reason than memory, OSError if the table cannot be written.
    """
    path = table_path(folder, request.model, unit.name, request.precision) if folder is not None else None
    known = read_table(path) if path is not None and path.exists() else None
    with UnitPool([unit], request) as pool:
        table = pool.tables[unit.name].model_copy(update={"provenance": provenance})
        if path is not None and known is not None:
            table.check_same(known, path)
            table = known
        wanted = sorted(set(batches) - {row.batch for row in table.rows})
        for done, batch in enumerate(wanted):
            progress(done, len(wanted), f"{unit.name} batch {batch}")
            if table.too_large and batch >= table.too_large:
                break
            try:
                measured = pool.ask(Network.measure, {unit.name: (batch, samples, path is None)})
                table = table.with_rows([_row(batch, measured[unit.name])])
            except OutOfMemory:
                table = table.model_copy(update={"too_large": batch})
            if path is not None:
                write_table(path, table)
        progress(len(wanted), len(wanted), unit.name)
    return table


def _row(batch: int, times: list[Times]) -> Row:
    samples = np.array([[each.input_ms, each.compute_ms, each.output_ms, each.total_ms] for each in times])
    input_ms, compute_ms, output_ms, total_ms = np.median(samples, axis=0).tolist()
    low, high = np.percentile(samples[:, 3], (25, 75)).tolist()
    return Row(
        batch=batch, samples=len(times), input_ms=input_ms, compute_ms=compute_ms, output_ms=output_ms,
        total_ms=total_ms, spread_ms=(high - low) / 2,
    )  # fmt: skip
