"""``multi-dnn partition table``: print, plot and edit stored tables."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

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
)
from multi_dnn_ros.common.errors import UsageError

_DETAILS = """\
Prints the tables of a network. --merge, --drop and --refresh change the stored tables first, in this order.
"""
_EXAMPLES = """\
multi-dnn partition table torchvision:resnet18 --csv times.csv --plot times.png
multi-dnn partition table torchvision:resnet18 --units cpu:1 --refresh 8 16
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
    add("--csv", type=Path, metavar="CSV", help="write all rows to this file")
    add_plot(parser, "times and rates by batch size")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance, write_text
    from multi_dnn_ros.partition.measure import profile_unit
    from multi_dnn_ros.planning.batch_table import CSV_HEADER, csv_rows, table_path, write_table

    check_files(args, "csv", "plot")
    folder = tables_folder(args)
    for file in args.merge:
        _merge(args, file, folder)
    units, tables = stored_tables(args, check=False, failed=True)
    for unit in units:
        if args.drop:
            tables[unit.name] = tables[unit.name].without(args.drop)
            write_table(table_path(folder, args.model, unit.name, args.precision), tables[unit.name])
        if args.refresh:
            tables[unit.name] = profile_unit(unit, network_request(args), args.precision, args.refresh, folder,
                                             refresh=True, provenance=provenance())  # fmt: skip
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


def _merge(args: argparse.Namespace, file: Path, folder: Path) -> None:
    from multi_dnn_ros.planning.batch_table import read_table, table_path, write_table

    added = read_table(file)
    if added.model != args.model or added.precision != args.precision:
        raise UsageError(f"--merge {file} is a table of {added.model} at precision {added.precision}, not of "
                         f"{args.model} at {args.precision}")  # fmt: skip
    path = table_path(folder, added.model, added.unit, added.precision)
    if path.exists():
        known = read_table(path)
        known.require_same(added, str(file))
        at = {row.batch: row.measured_at for row in known.rows}
        added = known.with_rows(row for row in added.rows if row.measured_at >= at.get(row.batch, ""))
    write_table(path, added)
