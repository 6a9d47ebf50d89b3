"""``multi-dnn partition profile`` and ``io``: measure the tables that plans are made from."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli.arguments import positive, positive_float
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_loading
from multi_dnn_ros.cli.partition_arguments import (
    add_model,
    add_units,
    network_request,
    row_table,
    tables_folder,
)
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.planning.batch_units import check_installation

_PROFILE = """\
The units are measured one after another at batch sizes 2^n - 1, 2^n and 2^n + 1 up to --max-batch, or at those of
--batches. Times of sizes between two measured ones are interpolated.

Each result is written to the unit's table immediately; an interrupted command continues when it is started again. A
batch size that does not fit in memory is recorded as such, and larger ones are not tried.
"""
_IO = """\
No network runs. On a GPU the images are copied between host memory and the GPU, on a CPU within memory.
"""


def add_actions(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare profile and io."""
    profile = add_command(
        actions, "profile", "measure a network on each unit by batch size", details=_PROFILE, run=_profile,
        examples="multi-dnn partition profile torchvision:resnet18 --units cpu:1,cpu:2 --max-batch 32",
    )  # fmt: skip
    _add_measured(profile)
    add = profile.add_argument
    sizes = profile.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--max-batch", type=positive, metavar="N", help="largest batch size to measure")
    sizes.add_argument("--batches", type=positive, nargs="+", metavar="N",
                       help="measure only these batch sizes, for example if all batches have one size")  # fmt: skip
    _add_sampling(profile)
    add("--replace", action="store_true",
        help="start new tables, replacing existing ones of this or another model, device or version")  # fmt: skip

    io = add_command(
        actions, "io", "measure how long it takes to copy images to a unit and back", details=_IO, run=_io,
        examples="multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8",
    )  # fmt: skip
    _add_measured(io)
    add = io.add_argument
    add("--batch", type=positive, default=1, metavar="N", help="smallest batch size (default: %(default)s)")
    add("--max-batch", type=positive, metavar="N", help="largest batch size (default: --batch)")
    add("--increment", type=positive, default=1, metavar="N", help="step between batch sizes (default: %(default)s)")
    _add_sampling(io)


def _add_measured(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_units(parser, required=True)
    add_loading(parser, weights="")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--samples", type=positive, default=15, metavar="N",
        help="runs per batch size, of which medians are reported (default: %(default)s)")  # fmt: skip
    add("--limit", type=positive_float, default=20.0, metavar="S",
        help="time limit in seconds for the runs of one batch size, of which at least 3 are made "
        "(default: %(default)g)")  # fmt: skip


def _profile(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.partition.measure import Sampling, profile_unit
    from multi_dnn_ros.planning.batch_table import sizes_to_measure, table_path

    folder, request = tables_folder(args), network_request(args)
    for unit in args.units:
        check_installation(unit)
    for unit in args.units:
        with progress_bar(unit="size") as progress:
            table = profile_unit(
                unit,
                request,
                args.precision,
                args.batches or sizes_to_measure(args.max_batch),
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

    largest = args.max_batch or args.batch
    if largest < args.batch:
        raise UsageError(f"--max-batch is {largest}; it must be at least --batch, {args.batch}")
    batches = range(args.batch, largest + 1, args.increment)
    for unit in args.units:
        check_installation(unit)
    for unit in args.units:
        with progress_bar(unit="size") as progress:
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
        print(f"\nimages of {args.model} to {unit.name} and back, {mebibytes:.3g} MiB per image each way: {device}\n")
        print(row_table(table))
    return 0
