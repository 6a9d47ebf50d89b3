"""Measure the table of a unit: one batch size after another, each written immediately so that a run can continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.executor import NetworkRequest, RunTimes
from multi_dnn_ros.partition.unit_process import PREPARE_TIMEOUT_S, UnitFailure, UnitHandle, UnitProcesses
from multi_dnn_ros.planning.batch_table import BatchTable, Row, Spread, lock_table, read_table, table_path, write_table
from multi_dnn_ros.planning.batch_units import Unit

#: Minimum number of samples, for batch sizes that exceed the time limit.
MIN_SAMPLES = 3
ReportProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Sampling:
    """samples: runs per batch size, of which medians are used. limit_s: time limit for the runs of one batch size; at
    least MIN_SAMPLES runs are made.
    """

    samples: int = 15
    limit_s: float = 20.0


def profile_unit(
    unit: Unit,
    network: NetworkRequest,
    precision: str,
    batches: Iterable[int],
    folder: Path,
    *,
    sampling: Sampling = Sampling(),
    replace: bool = False,
    refresh: bool = False,
    provenance: Mapping[str, Any] | None = None,
    progress: ReportProgress = lambda done, total, what: None,
) -> BatchTable:
    """Measure the batch sizes that are missing from the unit's table, in a process of the unit.

    The table is written after each size. A size that does not fit in memory becomes a row with the reason, and larger
    ones are not tried, now or later. replace: start a new table even if the existing one is of another model, device
    or version. refresh: measure all of `batches` again. Raises TableError for such a table unless `replace` is set,
    UnitFailure for a unit that fails for another reason than memory, ProfileError for a file that is not a table,
    CommandError while another command measures or changes the table, OSError if it cannot be written.
    """
    path = table_path(folder, network.model, unit.name, precision)
    wanted = sorted(set(batches))
    with lock_table(path), UnitProcesses([unit]) as processes:
        processes.open(network, precision)
        table = _new_table(processes.handles[unit.name], network, precision, dict(provenance or {}))
        if path.exists() and not replace:
            known = read_table(path)
            table.require_same(known, str(path))
            table = table.with_rows(known.rows)
        to_replace = set(wanted) if refresh else set()  # sizes whose rows stay until they are measured again
        for done, batch in enumerate(wanted):
            progress(done, len(wanted), f"{unit.name} batch {batch}")
            limit = next((row.batch for row in table.rows if row.failure and row.batch not in to_replace), None)
            if limit is not None and batch >= limit:
                break
            if batch not in to_replace and any(row.batch == batch for row in table.rows):
                continue
            to_replace.discard(batch)
            request = messages.Measure(batch, sampling.samples, MIN_SAMPLES, sampling.limit_s)
            timeout_s = PREPARE_TIMEOUT_S + 4 * sampling.limit_s
            try:
                measured = processes.handles[unit.name].ask(request, messages.Measured, timeout_s)
                row = _row(batch, measured.times)
            except UnitFailure as failure:
                if not failure.out_of_memory:
                    raise
                row = Row(batch=batch, samples=0, failure=failure.text, measured_at=_now())
            if row.total is not None and row.total.p50 == 0.0:  # of an executor that does not measure
                problem = f"reported 0 ms for {batch} images; allowed: more than 0"
                raise UnitFailure(unit.name, problem, lost=False, out_of_memory=False)
            table = table.with_rows([row])
            write_table(path, table)
        progress(len(wanted), len(wanted), unit.name)
    return table


def measure_transfers(
    unit: Unit,
    network: NetworkRequest,
    precision: str,
    batches: Iterable[int],
    *,
    sampling: Sampling = Sampling(),
    progress: ReportProgress = lambda done, total, what: None,
) -> tuple[tuple[int, int, int], str, list[Row]]:
    """Time copying images to the unit and back, without running the network: (shape of an image, device, rows).

    Stops at the first size that does not fit in memory. Raises UnitFailure for another failure.
    """
    wanted = sorted(set(batches))
    rows: list[Row] = []
    with UnitProcesses([unit]) as processes:
        processes.open(network, precision)
        handle = processes.handles[unit.name]
        for done, batch in enumerate(wanted):
            progress(done, len(wanted), f"{unit.name} batch {batch}")
            request = messages.Measure(batch, sampling.samples, MIN_SAMPLES, sampling.limit_s, transfer=True)
            try:
                measured = handle.ask(request, messages.Measured, PREPARE_TIMEOUT_S)
            except UnitFailure as failure:
                if not failure.out_of_memory:
                    raise
                rows.append(Row(batch=batch, samples=0, failure=failure.text, measured_at=_now()))
                break
            rows.append(_row(batch, measured.times))
        progress(len(wanted), len(wanted), unit.name)
        table = _new_table(handle, network, precision, {})
        return table.shape, table.device, rows


def _new_table(handle: UnitHandle, network: NetworkRequest, precision: str, provenance: dict[str, Any]) -> BatchTable:
    opened = handle.opened
    if opened is None:
        raise RuntimeError(f"{handle.unit.name} is not open")
    return BatchTable(
        model=network.model,
        shape=opened.shape,
        parameters=opened.parameters,
        unit=handle.unit.name,
        precision=precision,
        device=opened.device,
        provenance=provenance,
    )


def _row(batch: int, times: Iterable[RunTimes]) -> Row:
    samples = list(times)
    return Row(
        batch=batch,
        samples=len(samples),
        input=Spread.of([each.input_ms for each in samples]),
        compute=Spread.of([each.compute_ms for each in samples]),
        output=Spread.of([each.output_ms for each in samples]),
        total=Spread.of([each.total_ms for each in samples]),
        measured_at=_now(),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
