"""``multi-dnn partition table``: print, plot and edit stored tables."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_loading
from multi_dnn_ros.cli.options import add_plot, check_files
from multi_dnn_ros.cli.partition_arguments import (
    add_model,
    add_units,
    network_request,
    row_table,
    stored_tables,
    tables_folder,
    units,
)
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.planning.batch_table import BatchTable

_DETAILS = """\
Prints the tables of a network. --merge, --drop, --refresh and --copy-to change the stored tables first, in this order.

Equal GPUs need to be measured only once: --copy-to stores the table of one unit for others that are the same model of
GPU, with the same number of SMs, backend and versions.
"""
_EXAMPLES = """\
multi-dnn partition table torchvision:resnet18 --csv times.csv --plot times.png
multi-dnn partition table torchvision:resnet18 --units cpu:1 --refresh 8 16
multi-dnn partition table torchvision:resnet18 --units cuda:0 --copy-to cuda:1,cuda:2,cuda:3
"""


def add_action(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare table."""
    parser = add_command(
        actions, "table", "print, plot, merge and correct tables", details=_DETAILS, examples=_EXAMPLES, run=_run
    )
    add_model(parser)
    add_units(parser, required=False)
    add_loading(parser, weights="")
    add = parser.add_argument
    add("--merge", type=Path, nargs="+", default=[], metavar="JSON",
        help="add the rows of these tables; of two rows with one batch size the newer one is kept")  # fmt: skip
    add("--drop", type=positive, nargs="+", default=[], metavar="N", help="remove the rows of these batch sizes")
    add("--refresh", type=positive, nargs="+", default=[], metavar="N", help="measure these batch sizes again")
    add("--copy-to", type=units, default=[], metavar="UNIT,...",
        help="store the table of the one unit in --units for these equal units, too")  # fmt: skip
    add("--csv", type=Path, metavar="CSV", help="write all rows to this file")
    add_plot(parser, "times and rates by batch size")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance, write_text
    from multi_dnn_ros.partition.measure import profile_unit
    from multi_dnn_ros.planning.batch_table import CSV_HEADER, csv_rows, lock_table, read_table, table_path, write_table

    check_files(args, "csv", "plot")
    folder = tables_folder(args)
    for file in args.merge:
        _merge(args, file, folder)
    chosen, tables = stored_tables(args, check=False, failed=True)
    if args.copy_to and len(chosen) != 1:
        raise UsageError("--copy-to needs one unit whose table is copied, such as --units cuda:0")
    for unit in chosen:
        if args.drop:
            path = table_path(folder, args.model, unit.name, args.precision)
            with lock_table(path):
                tables[unit.name] = read_table(path).without(args.drop)
                write_table(path, tables[unit.name])
        if args.refresh:
            with progress_bar(unit="size") as progress:
                tables[unit.name] = profile_unit(unit, network_request(args), args.precision, args.refresh, folder,
                                                 refresh=True, provenance=provenance(), progress=progress)  # fmt: skip
    tables |= _copied(args, folder, tables)
    for table in tables.values():
        print(f"\n{table.model} on {table.unit}, precision {table.precision}: {table.device}\n")
        print(row_table(table))
    if args.csv is not None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([CSV_HEADER, *csv_rows(tables.values())])
        write_text(args.csv, text.getvalue())
    if args.plot is not None:
        from multi_dnn_ros.partition.plots import write_table_plot

        write_table_plot(args.plot, tables.values())
    return 0


def _copied(args: argparse.Namespace, folder: Path, tables: Mapping[str, BatchTable]) -> dict[str, BatchTable]:
    """Store the copies of --copy-to and return them by unit. Raises CommandError for a unit that is not equal."""
    from multi_dnn_ros.partition.executor import identity
    from multi_dnn_ros.planning.batch_table import lock_table, table_path, write_table

    copies = {}
    for unit in args.copy_to:
        (table,) = tables.values()
        if unit.name == table.unit:
            continue
        if (device := identity(unit, args.precision)) != table.device:
            raise CommandError(
                f"--copy-to {unit.name}: it is '{device}', but the table of {table.unit} was measured on "
                f"'{table.device}'; no table was copied"
            )
        copies[unit.name] = table.model_copy(update={"unit": unit.name, "provenance": {
            **table.provenance, "copied_from": table.unit}})  # fmt: skip
    for name, copy in copies.items():
        path = table_path(folder, args.model, name, args.precision)
        with lock_table(path):
            write_table(path, copy)
    return copies


def _merge(args: argparse.Namespace, file: Path, folder: Path) -> None:
    from multi_dnn_ros.planning.batch_table import lock_table, read_table, table_path, write_table

    added = read_table(file)
    if added.model != args.model or added.precision != args.precision:
        raise UsageError(f"--merge {file} is a table of {added.model} at precision {added.precision}, not of "
                         f"{args.model} at {args.precision}")  # fmt: skip
    path = table_path(folder, added.model, added.unit, added.precision)
    with lock_table(path):
        if path.exists():
            known = read_table(path)
            known.require_same(added, str(file))
            measured_at = {row.batch: row.measured_at for row in known.rows}
            added = known.with_rows(row for row in added.rows if row.measured_at >= measured_at.get(row.batch, ""))
        write_table(path, added)
