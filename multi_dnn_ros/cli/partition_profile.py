"""``multi-dnn partition profile`` and ``io``: the tables that plans are made from."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli.arguments import positive, positive_float
from multi_dnn_ros.cli.partition_arguments import (
    add_model,
    add_network,
    add_units,
    network_request,
    progress_bar,
    row_table,
    tables_folder,
)
from multi_dnn_ros.common.errors import UsageError

_PROFILE = """\
Measure the model on each unit, one unit after the other, at batch sizes 2^n - 1, 2^n and 2^n + 1 up to --max-batch.

Each size is written to the unit's table as soon as it is measured; started again, the command measures what is still
missing. A size for which memory does not suffice is noted, and no larger one is tried.
"""
_IO = """\
Measure how long images take to a unit and back, without a network: on a GPU between memory of the host and the GPU, on
a CPU a copy within memory.
"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare them."""
    profile = actions.add_parser("profile", help="measure a model on each unit by batch size", description=_PROFILE,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add_model(profile)
    add_units(profile, required=True)
    add_network(profile)
    add = profile.add_argument
    add("--max-batch", type=positive, required=True, metavar="N", help="largest batch size to measure")
    _add_sampling(profile)
    add("--replace", action="store_true", help="begin tables anew, also those of another model, device or version")
    profile.set_defaults(run=_profile)

    io = actions.add_parser("io", help="measure transfers alone", description=_IO,
                            formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add_model(io)
    add_units(io, required=True)
    add_network(io)
    add = io.add_argument
    add("--batch", type=positive, default=1, metavar="N", help="first batch size (default: %(default)s)")
    add("--max-batch", type=positive, metavar="N", help="last batch size (default: --batch)")
    add("--increment", type=positive, default=1, metavar="N", help="from one size to the next (default: %(default)s)")
    _add_sampling(io)
    io.set_defaults(run=_io)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--samples", type=positive, default=15, metavar="N", help="runs of each size; medians count (default: 15)")
    add("--limit", type=positive_float, default=20.0, metavar="SECONDS",
        help="of the runs of one size, which then has fewer samples, but at least 3 (default: 20)")  # fmt: skip


def _profile(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.partition.measure import Sampling, profile_unit
    from multi_dnn_ros.planning.batch_table import batch_sizes, table_path

    folder, request = tables_folder(args), network_request(args)
    for unit in args.units:
        with progress_bar() as progress:
            table = profile_unit(
                unit,
                request,
                args.precision,
                batch_sizes(args.max_batch),
                folder,
                sampling=Sampling(args.samples, args.limit),
                replace=args.replace,
                provenance=provenance(),
                progress=progress,
            )
        print(f"\n{table.model} on {table.unit}: {table.device}\n")
        print(row_table(table))
        print(f"\nwritten to {table_path(folder, args.model, unit.name, args.precision)}")
    return 0


def _io(args: argparse.Namespace) -> int:
    from multi_dnn_ros.partition.measure import Sampling, measure_transfers
    from multi_dnn_ros.planning.batch_table import BatchTable

    most = args.max_batch or args.batch
    if most < args.batch:
        raise UsageError(f"--max-batch is {most}; allowed: from --batch {args.batch}")
    batches = range(args.batch, most + 1, args.increment)
    for unit in args.units:
        with progress_bar() as progress:
            shape, device, rows = measure_transfers(
                unit,
                network_request(args),
                args.precision,
                batches,
                sampling=Sampling(args.samples, args.limit),
                progress=progress,
            )
        table = BatchTable(model=args.model, shape=shape, parameters=0, unit=unit.name, precision=args.precision,
                           device=device, rows=tuple(rows))  # fmt: skip
        mebibytes = shape[0] * shape[1] * shape[2] * 4 / 2**20
        print(f"\nimages of {args.model} to {unit.name} and back, {mebibytes:.3g} MiB each way per image: {device}\n")
        print(row_table(table))
    return 0
