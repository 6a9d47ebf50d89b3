"""Options that the actions of ``multi-dnn partition`` share, and functions that read them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli import network_arguments
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.planning.batch_units import UNIT_KINDS, Unit, UnitError, parse_units
from multi_dnn_ros.settings.precisions import PRECISIONS

if TYPE_CHECKING:
    from multi_dnn_ros.partition.executor import NetworkRequest
    from multi_dnn_ros.partition.session import BatchSession
    from multi_dnn_ros.planning.batch_table import BatchTable


def units(text: str) -> tuple[Unit, ...]:
    """The type of --units."""
    UNIT_KINDS.report_broken()
    try:
        return parse_units(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_model(parser: argparse.ArgumentParser) -> None:
    """The network, its precision, and the folder of its tables."""
    add = parser.add_argument
    network_arguments.add_model(parser)
    add("--precision", choices=PRECISIONS, default="auto",
        help="precision, as parameter dnn.<dnn>.precision of the node (default: %(default)s)")  # fmt: skip
    add_tables(parser)


def add_tables(parser: argparse._ActionsContainer) -> None:
    """--tables."""
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="folder of tables (default: ~/.cache/multi_dnn_ros/partition)"
    )


def add_units(
    parser: argparse._ActionsContainer, *, required: bool, default: str = "every unit that has a table"
) -> None:
    """--units. default: what happens without it, for the help."""
    note = "" if required else f" (default: {default})"
    parser.add_argument(
        "--units", type=units, required=required, metavar="UNIT,...",
        help=f"units, such as cpu:8,cuda:0,cuda:1/16sms{note}",
    )  # fmt: skip


def add_search(parser: argparse.ArgumentParser) -> None:
    """--search."""
    parser.add_argument(
        "--search", choices=("exact", "greedy"), default="exact",
        help="how the plan is found: exact, by dynamic programming; greedy, as in the paper on batch partitioning "
        "(default: exact)",
    )  # fmt: skip


def network_request(args: argparse.Namespace) -> NetworkRequest:
    """What to load: the network of :func:`add_model` and the options of network_arguments.add_loading."""
    from multi_dnn_ros.partition.executor import NetworkRequest

    return NetworkRequest(args.model, args.weights, args.num_classes, args.size)


def tables_folder(args: argparse.Namespace) -> Path:
    """--tables, or its default."""
    from multi_dnn_ros.planning.batch_table import default_folder

    folder: Path | None = args.tables
    return folder if folder is not None else default_folder()


def stored_tables(
    args: argparse.Namespace, *, check: bool, failed: bool = False
) -> tuple[list[Unit], dict[str, BatchTable]]:
    """The units of --units, or all that have a table of the model, and their tables by unit; see find_tables."""
    return find_tables(args.model, args.precision, args.units or (), tables_folder(args), check=check, failed=failed)


def find_tables(
    model: str, precision: str, units: Sequence[Unit], folder: Path, *, check: bool, failed: bool = False
) -> tuple[list[Unit], dict[str, BatchTable]]:
    """These units and their tables by unit. Without units: all units that have a table of the model.

    check: refuse tables measured on another device or with other library versions than this machine's. failed: accept
    tables in which every measurement failed; otherwise such a table is refused if its unit is named, and left out with
    a line on stderr if no units are named. Raises CommandError for a unit without a table, TableError for a table that
    is refused or does not match the others, ProfileError for a file that is not a table.
    """
    from multi_dnn_ros.partition.executor import identity
    from multi_dnn_ros.planning.batch_table import TableError, read_table, table_path

    def no_table(unit: str) -> CommandError:
        return CommandError(
            f"there is no table of {model} on {unit} at precision {precision} in {folder}; measure one with "
            "`multi-dnn partition profile`"
        )

    chosen = list(units)
    if not chosen:
        files = sorted(table_path(folder, model, "any", precision).parent.glob(f"*.{precision}.json"))
        chosen = [parse_units(read_table(file).unit)[0] for file in files]
    tables: dict[str, BatchTable] = {}
    left_out = []
    for unit in chosen:
        path = table_path(folder, model, unit.name, precision)
        if not path.exists():
            raise no_table(unit.name)
        table = read_table(path)
        if not table.largest and not failed:
            text = f"{path} has no batch size that was measured without a failure"
            if units:
                raise TableError(
                    f"{text}; measure it again with `multi-dnn partition table --units {unit.name} --refresh N`, or "
                    f"start a new table with `multi-dnn partition profile --units {unit.name} --replace`"
                )
            print(f"unit {unit.name} is not used: {text}", file=sys.stderr)
            left_out.append(unit)
            continue
        first = next(iter(tables.values()), table)
        expected = (model, unit.name, precision, first.shape, first.parameters)
        found = (table.model, table.unit, table.precision, table.shape, table.parameters)
        if found != expected:
            raise TableError(
                f"{path} is a table of {found}; expected (model, unit, precision, shape, parameters) {expected}"
            )
        if check:
            device = identity(unit, precision)
            if table.device != device:
                raise TableError(
                    f"{path} was measured on '{table.device}'; {unit.name} is '{device}' now: measure it again with "
                    "`multi-dnn partition profile --replace`"
                )
        tables[unit.name] = table
    if not tables and not left_out:
        raise no_table("any unit")
    if not tables:
        raise TableError(f"in all tables of {model} at precision {precision} in {folder} every measurement failed")
    return [unit for unit in chosen if unit not in left_out], tables


def plan_session(
    model: str, precision: str, units: Sequence[Unit], folder: Path, batch: int, network: NetworkRequest
) -> BatchSession:
    """A session of `units` for batches of `batch` images, planned by their stored times. Prints how these are divided.

    Raises what find_tables raises, PlanError for a batch that the units cannot hold, and UnitFailure.
    """
    from multi_dnn_ros.common.reporting import cpu_count
    from multi_dnn_ros.partition.session import BatchSession
    from multi_dnn_ros.planning.batch_plan import plan_together
    from multi_dnn_ros.planning.batch_units import sharing_warnings
    from multi_dnn_ros.planning.unit_slowdowns import read_slowdowns

    units, tables = find_tables(model, precision, units, folder, check=True)
    plan = plan_together(tables, batch, together=read_slowdowns(folder, model, precision).times)
    for warning in sharing_warnings([unit for unit in units if plan.images[unit.name]], cpu_count()):
        print(f"warning: {warning}", file=sys.stderr)
    divided = ", ".join(f"{count} on {name}" for name, count in plan.images.items())
    print(f"{model}: {batch} images per batch: {divided}; predicted {plan.total_ms:.4g} ms", file=sys.stderr)
    return BatchSession(units, tables, plan, network, precision)


def row_table(table: BatchTable) -> str:
    """The rows of one table as text: medians in milliseconds, for the total with half the interquartile range."""
    from multi_dnn_ros.common.reporting import table as markdown
    from multi_dnn_ros.common.reporting import three_digits

    lines = []
    for row in table.rows:
        total = row.total
        if total is None:
            lines.append([str(row.batch), "-", "-", "-", "-", "-", "-", row.failure])
            continue
        cells = [three_digits(part.p50) if part else "-" for part in (row.input, row.compute, row.output)]
        spread = f"{three_digits(total.p50)} ± {three_digits((total.p75 - total.p25) / 2)}"
        lines.append([str(row.batch), *cells, spread, three_digits(total.p50 / row.batch), str(row.samples), ""])
    return markdown(
        ["batch", "input ms", "compute ms", "output ms", "total ms", "ms per image", "samples", "note"], lines
    )
