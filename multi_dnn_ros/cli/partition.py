"""Split one large batch over several devices.

The images of a batch run on several units at once, so that the last unit finishes as early as possible. First
`profile` measures a network on each unit; `plan` and `run` use these tables.

A unit is one of:
  cpu              all cores that this process may use
  cpu:8            8 threads
  cuda:0           a GPU
  openvino:gpu     an execution provider of ONNX Runtime (docs/devices.md)

examples:
  multi-dnn partition profile torchvision:resnet18 --units cpu:1,cuda:0 --max-batch 64
  multi-dnn partition plan torchvision:resnet18 --batch 100
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.figures import progress_bar, rows_table, write_figures
from multi_dnn_ros.cli.networks import takes_weights
from multi_dnn_ros.cli.options import Commands, add_command, add_options, add_subcommands, positive
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.planning.units import Unit, UnitError

if TYPE_CHECKING:
    from torch import Tensor

    from multi_dnn_ros.partition.plan import Plan
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.partition.tables import BatchTable


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    actions = add_subcommands(add_command(commands, "partition", __doc__), "action")
    for name, action in (("profile", profile), ("plan", plan), ("run", run), ("table", show_tables), ("io", io)):
        measures, plans = action in (profile, io), action in (plan, run)
        parser = add_command(actions, name, action.__doc__, action)
        add = parser.add_argument
        add_options(parser, "model", "--precision")
        add("--units", type=_units, required=measures, metavar="UNIT,...",
            help="such as cpu:8,cuda:0" + " (default: every unit that has a table)" * (not measures))  # fmt: skip
        add("--tables", type=Path, default=cache_folder() / "partition", metavar="DIR",
            help="folder of tables (default: ~/.cache/multi_dnn_ros/partition)")  # fmt: skip
        if measures or action is run:
            add_options(parser, "--weights", default="", help="weights of a torchvision network (default: random)")
            add_options(parser, "--repeats", default=9)
        if measures:
            add_options(parser, "--size")
            add("--max-batch", type=positive, required=action is profile, metavar="N",
                help="largest batch size to measure" + " (default: --batch)" * (action is io))  # fmt: skip
        if action is not profile and action is not show_tables:
            counts = {plan: "", run: " (default: all of --input)", io: ", the smallest (default: 1)"}
            add_options(parser, "--batch", required=action is plan, help=f"images in the batch{counts[action]}")
        if plans:
            add("--search", choices=("exact", "greedy"), default="exact",
                help="exact: by dynamic programming; greedy: as in the paper (default: exact)")  # fmt: skip
            add_options(parser, "--report", metavar="JSON", help="write plans, times and versions to this file")
        if action is run:
            add("--input", type=Path, metavar="NPY",
                help="images, a float32 array (N, 3, height, width) (default: --batch random ones)")  # fmt: skip
            add_options(parser, "--output", metavar="NPZ", help="write the outputs to this file: output_0, ...")
            add("--compare", action="store_true", help="also run every subset of the units, and compare the outputs")
        if action is io:
            add("--increment", type=positive, default=1, metavar="N", help="step between batch sizes (default: 1)")


def _units(text: str) -> tuple[Unit, ...]:
    """The type of --units."""
    from multi_dnn_ros.partition.units import parse_units

    try:
        return parse_units(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def profile(args: argparse.Namespace) -> int:
    """Measure a network on each unit by batch size.

    Each unit is measured alone, at 1, --max-batch, and 2^n - 1, 2^n and 2^n + 1, where times change most. Sizes in the
    unit's table are not measured again. A size that does not fit into memory is noted, and larger ones are not tried.

    examples:
      multi-dnn partition profile torchvision:resnet18 --units cpu:1,cuda:0 --max-batch 64
    """
    from multi_dnn_ros.partition.tables import sizes_to_measure

    _measure(args, sizes_to_measure(args.max_batch), args.tables)
    return 0


def io(args: argparse.Namespace) -> int:
    """Measure how long it takes to copy images to a unit and back.

    No network runs. On a CPU the images are copied within memory.

    examples:
      multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
    """
    smallest = args.batch or 1
    largest = args.max_batch or smallest
    if largest < smallest:
        raise UsageError(f"--max-batch is {largest}; it must be at least --batch, {smallest}")
    _measure(args, range(smallest, largest + 1, args.increment), None)
    return 0


def show_tables(args: argparse.Namespace) -> int:
    """Print tables.

    To measure one again, remove its file, which `profile` names.

    examples:
      multi-dnn partition table torchvision:resnet18 --units cpu:1
    """
    for table in _stored_tables(args).values():
        _print_table(table)
    return 0


def plan(args: argparse.Namespace) -> int:
    """Compute how many images of a batch each unit gets.

    Times between two measured batch sizes are interpolated. A unit gets no more images than it was measured for. The
    plans for every subset of the units are listed, too (with more than 8 units: only single units).

    examples:
      multi-dnn partition plan torchvision:resnet18 --batch 100
    """
    from multi_dnn_ros.partition.plan import make_plan, plan_subsets

    tables = _stored_tables(args)
    best = make_plan(tables, args.batch, args.search)
    subsets = plan_subsets(tables, args.batch, args.search)
    print(rows_table([
        {"unit": unit, "images": count, "predicted_ms": best.ms[unit]} for unit, count in best.images.items()
    ]))  # fmt: skip
    print(f"\n{rows_table([_subset_row(units, each) for units, each in subsets.items()])}")
    about = {"model": args.model, "precision": args.precision, "plan": _plan_json(best)}
    write_figures(args.report, {**about, "subsets": [_plan_json(each) for each in subsets.values() if each]})
    return 0


def run(args: argparse.Namespace) -> int:
    """Run a batch on the units by a plan, and time it.

    Each unit is a process that holds the network. The times printed are those of the round of median length. With
    --compare the command fails if outputs differ by more than the precision allows.

    examples:
      multi-dnn partition run torchvision:resnet18 --weights IMAGENET1K_V1 --input images.npy --output logits.npz
    """
    if args.input is None and args.batch is None:
        raise UsageError("--batch or --input is needed: the number of random images, or a file with images")
    if args.output is not None and not args.weights and takes_weights(args.model):
        raise UsageError(f"--output needs --weights for {args.model}: a name such as IMAGENET1K_V1, a file, or random")
    import numpy as np
    import torch

    from multi_dnn_ros.backends.precision import PRECISIONS
    from multi_dnn_ros.common.atomic_files import atomic_write
    from multi_dnn_ros.common.resources import cpu_count
    from multi_dnn_ros.partition.plan import make_plan, plan_subsets
    from multi_dnn_ros.partition.pool import UnitPool
    from multi_dnn_ros.partition.run import BatchRunner, check_outputs
    from multi_dnn_ros.partition.tables import table_path
    from multi_dnn_ros.partition.units import check_available, parse_units
    from multi_dnn_ros.partition.worker import NetworkRequest
    from multi_dnn_ros.planning.units import sharing_warnings

    tables = _stored_tables(args)
    units = [unit for name in tables for unit in parse_units(name)]
    check_available(units, args.precision)
    shape = next(iter(tables.values())).shape
    images = None if args.input is None else _read_images(args, shape)
    batch = args.batch if images is None else len(images)
    best = make_plan(tables, batch, args.search)
    if images is None:  # only now, because the plan has shown that the units can hold them
        images = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    for warning in sharing_warnings([unit for unit in units if best.images[unit.name]], cpu_count()):
        print(f"warning: {warning}", file=sys.stderr)
    subsets = plan_subsets(tables, batch, args.search) if args.compare else {}
    runs: dict[tuple[str, ...], BatchRun] = {}
    outputs: tuple[Tensor, ...] = ()
    # Both outputs that are compared may deviate from those in float32.
    allowed = 2 * max(PRECISIONS[args.precision].tolerance(torch.device(unit.device)) for unit in units)
    with UnitPool(units, NetworkRequest(args.model, args.precision, args.weights, (shape[2], shape[1]))) as pool:
        for unit, table in pool.tables.items():
            table.check_same(tables[unit], table_path(args.tables, args.model, unit, args.precision))
        runner = BatchRunner(pool, images)
        for subset, each in {tuple(tables): best, **subsets}.items():
            if each is not None:
                with progress_bar(f"{batch} images on {' + '.join(subset)}") as progress:
                    runs[subset] = runner.run(each, args.repeats, progress)
                outputs = outputs or tuple(output.clone() for output in runner.outputs)
                check_outputs(" + ".join(subset), runner.outputs, outputs, allowed)
    done = runs[tuple(tables)]
    print(rows_table([
        {"unit": share.unit, "images": share.images, "predicted_ms": best.ms[share.unit],
         "measured_ms": share.end_ms, **asdict(share.times)}
        for share in done.typical
    ]))  # fmt: skip
    print(f"\npredicted {best.total_ms:.4g} ms, measured {done.total_ms:.4g} ms "
          f"({done.total_ms / best.total_ms - 1:+.1%}), {1e3 * batch / done.total_ms:.4g} images/s")  # fmt: skip
    if args.compare:
        rows = [{**_subset_row(units, each), "measured_ms": each and runs[units].total_ms}
                for units, each in subsets.items()]  # fmt: skip
        print(f"\n{rows_table(rows)}")
    if args.output is not None:
        arrays: dict[str, Any] = {f"output_{index}": output.numpy() for index, output in enumerate(outputs)}
        with atomic_write(args.output) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        print(f"outputs written to {args.output}")
    measured = [
        {**_plan_json(each.plan), "measured_ms": each.total_ms, "rounds": [list(map(asdict, it)) for it in each.rounds]}
        for each in runs.values()
    ]
    about = {"model": args.model, "precision": args.precision, "batch": batch}
    write_figures(args.report, {**about, "run": measured[0], "subsets": measured})
    return 0


def _measure(args: argparse.Namespace, batches: Iterable[int], folder: Path | None) -> None:
    """Measure these batch sizes on every unit and print them. folder: of the tables; None: only copies."""
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.partition.measure import measure_unit
    from multi_dnn_ros.partition.tables import table_path
    from multi_dnn_ros.partition.units import check_available
    from multi_dnn_ros.partition.worker import NetworkRequest

    check_available(args.units, args.precision)  # all of them, before the first is measured for minutes
    network = NetworkRequest(args.model, args.precision, args.weights, args.size)
    for unit in args.units:
        with progress_bar(unit="size") as progress:
            table = measure_unit(unit, network, list(batches), args.repeats, folder, provenance(), progress)
        _print_table(table)
        if folder is not None:
            print(f"\nwritten to {table_path(folder, args.model, unit.name, args.precision)}")


def _stored_tables(args: argparse.Namespace) -> dict[str, BatchTable]:
    from multi_dnn_ros.partition.tables import find_tables

    return find_tables(args.tables, args.model, args.precision, [unit.name for unit in args.units or ()])


def _read_images(args: argparse.Namespace, shape: tuple[int, int, int]) -> Tensor:
    """The images of --input: (batch, *shape) float32."""
    import numpy as np
    import torch

    try:
        images = np.lib.format.open_memmap(args.input, mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise CommandError(f"--input {args.input} cannot be read as an .npy file: {error}") from None
    if images.dtype != np.float32 or images.shape[1:] != shape or not len(images):
        expected = f"float32 (N, {', '.join(map(str, shape))})"
        raise CommandError(f"--input {args.input} holds {images.dtype} {images.shape}; expected {expected}")
    if args.batch is not None and args.batch > len(images):
        raise UsageError(f"--batch is {args.batch}; --input {args.input} holds {len(images)} images")
    return torch.from_numpy(np.array(images[: args.batch]))


def _print_table(table: BatchTable) -> None:
    """Print medians in milliseconds, and of the total also half the interquartile range."""
    print(f"\n{table.model} on {table.unit}, precision {table.precision}: {table.device}\n")
    print(rows_table([{**dict(row), "ms_per_image": row.total_ms / row.batch} for row in table.rows]))
    if table.too_large:
        print(f"out of memory with {table.too_large} images")


def _subset_row(units: tuple[str, ...], each: Plan | None) -> Mapping[str, Any]:
    shares = " + ".join(map(str, each.images.values())) if each else "too many"
    return {"units": " + ".join(units), "images": shares, "predicted_ms": each and each.total_ms}


def _plan_json(made: Plan) -> dict[str, Any]:
    return {"images": dict(made.images), "unit_ms": dict(made.ms), "predicted_ms": made.total_ms}
