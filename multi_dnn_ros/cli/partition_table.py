"""``multi-dnn partition table``: look at stored tables, and change them."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.cli.partition_arguments import (
    add_model,
    add_network,
    add_units,
    network_request,
    row_table,
    stored_tables,
    tables_folder,
)
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require

_TABLE = """\
Print the tables of a model. --merge, --drop and --refresh change the stored ones first, in this order.
"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare it."""
    parser = actions.add_parser("table", help="print, plot, merge and correct tables", description=_TABLE,
                                formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add_model(parser)
    add_units(parser, required=False)
    add_network(parser)
    add = parser.add_argument
    add("--merge", type=Path, nargs="+", default=[], metavar="JSON",
        help="add rows of these tables; of equal batch sizes the one measured later stays")  # fmt: skip
    add("--drop", type=positive, nargs="+", default=[], metavar="N", help="remove the rows of these batch sizes")
    add("--refresh", type=positive, nargs="+", default=[], metavar="N", help="measure these batch sizes again")
    add("--csv", type=Path, metavar="CSV", help="write all rows there")
    add("--plot", type=Path, metavar="PNG", help="write times and rates by batch size there")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance, write_text
    from multi_dnn_ros.partition.measure import profile_unit
    from multi_dnn_ros.planning.batch_table import CSV_HEADER, csv_rows, table_path, write_table

    if args.plot is not None:
        require("--plot", "matplotlib")
    for option, path in (("--csv", args.csv), ("--plot", args.plot)):
        if path is not None:
            check_writable(option, path)
    folder = tables_folder(args)
    for file in args.merge:
        _merge(args, file, folder)
    units, tables = stored_tables(args, check=False)
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
