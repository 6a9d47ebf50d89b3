"""Fill the table of a unit: one batch size after the other, each written at once, so that it can be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.executor import NetworkRequest, RunTimes
from multi_dnn_ros.partition.unit_process import PREPARE_TIMEOUT_S, UnitFailure, UnitHandle, UnitProcesses
from multi_dnn_ros.planning.batch_table import BatchTable, Row, Spread, read_table, table_path, write_table
from multi_dnn_ros.planning.batch_units import Unit

#: Samples of a batch size that takes long.
LEAST_SAMPLES = 3
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Sampling:
    """samples: runs of each batch size; medians count. limit_s: of the runs of one batch size, which ends them early,
    but not before LEAST_SAMPLES.
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
    progress: Progress = lambda done, total, what: None,
) -> BatchTable:
    """Measure the batch sizes that the unit's table lacks, in a process of the unit's own.

    The table is written after each size. A size for which memory does not suffice becomes a row that says so, and
    larger ones are not tried, now or later. replace: begin a table anew that is of another model, device or version.
    refresh: measure all of `batches` again. Raises TableError for such a table without `replace`, UnitFailure for a
    unit that fails for another reason than memory, ProfileError for a file that is no table.
    """
    path = table_path(folder, network.model, unit.name, precision)
    wanted = sorted(set(batches))
    processes = UnitProcesses([unit])
    try:
        processes.open(network, precision)
        table = _begin(processes.handles[unit.name], network, precision, dict(provenance or {}))
        if path.exists() and not replace:
            known = read_table(path)
            table.require_same(known, str(path))
            table = table.with_rows(known.rows)
        if refresh:
            table = table.without(wanted)
        for done, batch in enumerate(wanted):
            progress(done, len(wanted), f"{unit.name} batch {batch}")
            limit = next((row.batch for row in table.rows if row.failure), None)
            if limit is not None and batch >= limit:
                break
            if any(row.batch == batch for row in table.rows):
                continue
            request = messages.Measure(batch, sampling.samples, LEAST_SAMPLES, sampling.limit_s)
            timeout_s = PREPARE_TIMEOUT_S + 4 * sampling.limit_s
            try:
                measured = processes.handles[unit.name].ask(request, messages.Measured, timeout_s)
                row = _row(batch, measured.times)
            except UnitFailure as failure:
                if not failure.out_of_memory:
                    raise
                row = Row(batch=batch, samples=0, failure=failure.text, measured_at=_now())
            table = table.with_rows([row])
            write_table(path, table)
        progress(len(wanted), len(wanted), unit.name)
    finally:
        processes.close()
    return table


def measure_transfers(
    unit: Unit,
    network: NetworkRequest,
    precision: str,
    batches: Iterable[int],
    *,
    sampling: Sampling = Sampling(),
    progress: Progress = lambda done, total, what: None,
) -> tuple[tuple[int, int, int], str, list[Row]]:
    """(shape of an image, device, rows) of images going to the unit and coming back, without a network.

    A size for which memory does not suffice ends it. Raises UnitFailure for a failure other than a lack of memory.
    """
    wanted = sorted(set(batches))
    rows: list[Row] = []
    with UnitProcesses([unit]) as processes:
        processes.open(network, precision)
        handle = processes.handles[unit.name]
        for done, batch in enumerate(wanted):
            progress(done, len(wanted), f"{unit.name} batch {batch}")
            request = messages.Measure(batch, sampling.samples, LEAST_SAMPLES, sampling.limit_s, transfer=True)
            try:
                measured = handle.ask(request, messages.Measured, PREPARE_TIMEOUT_S)
            except UnitFailure as failure:
                if not failure.out_of_memory:
                    raise
                rows.append(Row(batch=batch, samples=0, failure=failure.text, measured_at=_now()))
                break
            rows.append(_row(batch, measured.times))
        progress(len(wanted), len(wanted), unit.name)
        begun = _begin(handle, network, precision, {})
        return begun.shape, begun.device, rows


def _begin(handle: UnitHandle, network: NetworkRequest, precision: str, provenance: dict[str, Any]) -> BatchTable:
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
        input=Spread.of([of.input_ms for of in samples]),
        compute=Spread.of([of.compute_ms for of in samples]),
        output=Spread.of([of.output_ms for of in samples]),
        total=Spread.of([of.total_ms for of in samples]),
        measured_at=_now(),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
