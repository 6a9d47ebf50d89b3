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
  multi-dnn partition run torchvision:resnet18 --batch 100 --compare --report run.json
  multi-dnn partition table torchvision:resnet18
  multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import networks, options
from multi_dnn_ros.cli.figures import progress_bar, rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, positive
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.planning.batch_units import Unit, UnitError
from multi_dnn_ros.settings.forms import PRECISIONS

if TYPE_CHECKING:
    from torch import Tensor

    from multi_dnn_ros.partition.plan import Plan
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.partition.tables import BatchTable

    Plans = Mapping[tuple[str, ...], Plan | None]
    Runs = dict[tuple[str, ...], BatchRun]


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    actions = options.add_subcommands(options.add_command(commands, "partition", __doc__), "action")

    add = _add_action(actions, "profile", profile, measures=True)
    add("--max-batch", type=positive, required=True, metavar="N", help="largest batch size to measure")

    add = _add_action(actions, "plan", plan, plans=True)
    add("--batch", type=positive, required=True, metavar="N", help="images in the batch")

    add = _add_action(actions, "run", run, plans=True, runs=True)
    add("--batch", type=positive, metavar="N",
        help="number of random images, or of images to take from --input (default: all of --input)")  # fmt: skip
    add("--input", type=Path, metavar="NPY",
        help="images as the network takes them: a float32 array (N, 3, height, width)")  # fmt: skip
    add("--output", type=Path, metavar="NPZ", help="write the outputs to this file: output_0, output_1, ...")
    add("--compare", action="store_true", help="also run every subset of the units, and compare times and outputs")

    _add_action(actions, "table", show_tables)

    add = _add_action(actions, "io", measure_copies, measures=True)
    add("--batch", type=positive, default=1, metavar="N", help="smallest batch size (default: %(default)s)")
    add("--max-batch", type=positive, metavar="N", help="largest batch size (default: --batch)")
    add("--increment", type=positive, default=1, metavar="N", help="step between batch sizes (default: %(default)s)")


def _add_action(
    actions: Commands[argparse.ArgumentParser], name: str, action: Callable[[argparse.Namespace], int], *,
    measures: bool = False, plans: bool = False, runs: bool = False,
) -> Callable[..., argparse.Action]:  # fmt: skip
    """Declare an action with the options that it shares with others, and return its add_argument.

    measures: the units are measured, at --size; otherwise their tables are used, which have the size.
    """
    parser = options.add_command(actions, name, action.__doc__, action)
    networks.add_model(parser)
    add = parser.add_argument
    add("--units", type=_units, required=measures, metavar="UNIT,...",
        help=f"units, such as cpu:8,cuda:0{'' if measures else ' (default: every unit that has a table)'}")  # fmt: skip
    add("--precision", choices=[precision for precision in PRECISIONS if precision != "int8"], default="auto",
        help="precision, as parameter dnn.<dnn>.precision of the node (default: %(default)s)")  # fmt: skip
    add("--tables", type=Path, default=cache_folder() / "partition", metavar="DIR",
        help="folder of tables (default: ~/.cache/multi_dnn_ros/partition)")  # fmt: skip
    if measures:
        options.add_size(parser)
    if measures or runs:
        networks.add_timing_weights(parser)
        options.add_repeats(parser, 9, "timed runs of each batch")
    if plans:
        add("--search", choices=("exact", "greedy"), default="exact",
            help="how the plan is found: exact, by dynamic programming; greedy, as in the paper on batch partitioning "
            "(default: exact)")  # fmt: skip
        add("--report", type=Path, metavar="JSON", help="write plans, times and versions to this file")
    return add


def _units(text: str) -> tuple[Unit, ...]:
    """The type of --units."""
    from multi_dnn_ros.partition.units import parse_units

    try:
        return parse_units(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def profile(args: argparse.Namespace) -> int:
    """Measure a network on each unit by batch size.

    Each unit is measured alone, at 1, --max-batch, and 2^n - 1, 2^n and 2^n + 1, where times change most. Sizes that
    are in the unit's table already are not measured again, so that an interrupted command continues when it is
    repeated. A size that does not fit into memory is noted, and larger ones are not tried.

    examples:
      multi-dnn partition profile torchvision:resnet18 --units cpu:1,cuda:0 --max-batch 64
    """
    from multi_dnn_ros.partition.tables import sizes_to_measure, table_path

    for unit in args.units:
        _print_table(_measured(args, unit, sizes_to_measure(args.max_batch), args.tables))
        print(f"\nwritten to {table_path(args.tables, args.model, unit.name, args.precision)}")
    return 0


def measure_copies(args: argparse.Namespace) -> int:
    """Measure how long it takes to copy images to a unit and back.

    No network runs. On a CPU the images are copied within memory.

    examples:
      multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
    """
    largest = args.max_batch or args.batch
    if largest < args.batch:
        raise UsageError(f"--max-batch is {largest}; it must be at least --batch, {args.batch}")
    for unit in args.units:
        _print_table(_measured(args, unit, range(args.batch, largest + 1, args.increment), None))
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

    Times between two measured batch sizes are interpolated. A unit gets no more images than it was measured for.
    Besides the plan for all units, those for every subset of them are listed (with more than 8 units: only single
    units).

    examples:
      multi-dnn partition plan torchvision:resnet18 --batch 100
    """
    from multi_dnn_ros.partition.plan import make_plan, plan_subsets

    options.check_writable("--report", args.report)
    tables = _stored_tables(args)
    best = make_plan(tables, args.batch, args.search)
    subsets = plan_subsets(tables, args.batch, args.search)
    rows = [{"unit": unit, "images": count, "predicted_ms": best.ms[unit]} for unit, count in best.images.items()]
    print(f"{rows_table(rows)}\n\n{rows_table(_subset_rows(subsets, {}))}")
    subset_plans = [_plan_json(each) for each in subsets.values() if each]
    about = {"model": args.model, "precision": args.precision}
    write_figures(args.report, {**about, "plan": _plan_json(best), "subsets": subset_plans})
    return 0


def run(args: argparse.Namespace) -> int:
    """Run a batch on several units, as planned.

    The batch is divided as by `multi-dnn partition plan`, run once to warm up and then --repeats times. Each unit runs
    in a process of its own. Outputs are in the order of the inputs.

    If a unit fails, or its process is killed, the command ends with an error and writes nothing: repeat it with the
    other units. --compare also runs every subset of the units, and fails if their outputs differ by more than the
    precision allows.

    examples:
      multi-dnn partition run torchvision:resnet18 --batch 100 --compare --report run.json
    """
    options.check_writable("--output", args.output)
    options.check_writable("--report", args.report)
    if args.input is None and args.batch is None:
        raise UsageError("--batch or --input is needed: the number of random images, or a file with images")
    if args.output is not None and not args.weights and networks.takes_weights(args.model):
        raise UsageError(f"--output needs --weights for {args.model}: a name such as IMAGENET1K_V1, a file, or random")
    import numpy as np
    import torch

    from multi_dnn_ros.common.atomic_files import atomic_write
    from multi_dnn_ros.common.resources import cpu_count
    from multi_dnn_ros.partition.plan import make_plan, plan_subsets
    from multi_dnn_ros.partition.units import check_available, parse_units
    from multi_dnn_ros.planning.batch_units import sharing_warnings

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
    runs, outputs = _run_plans(args, units, tables, images, {tuple(tables): best, **subsets})
    done = runs[tuple(tables)]
    print(rows_table([
        {"unit": share.unit, "images": share.images, "predicted_ms": done.plan.ms[share.unit],
         "measured_ms": share.end_ms, **asdict(share.times)}
        for share in done.typical
    ]))  # fmt: skip
    print(f"\npredicted {best.total_ms:.4g} ms, measured {done.total_ms:.4g} ms "
          f"({done.total_ms / best.total_ms - 1:+.1%}), {1e3 * batch / done.total_ms:.4g} images/s")  # fmt: skip
    if args.compare:
        print(f"\n{rows_table(_subset_rows(subsets, runs))}")
    if args.output is not None:
        arrays: dict[str, Any] = {f"output_{index}": output.numpy() for index, output in enumerate(outputs)}
        with atomic_write(args.output) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        print(f"outputs written to {args.output}")
    about = {"model": args.model, "precision": args.precision, "batch": batch}
    write_figures(args.report, {**about, "run": _run_json(done), "subsets": list(map(_run_json, runs.values()))})
    return 0


def _run_plans(
    args: argparse.Namespace, units: Sequence[Unit], tables: Mapping[str, BatchTable], images: Tensor, plans: Plans
) -> tuple[Runs, tuple[Tensor, ...]]:
    """The runs of all plans, by units, and the outputs of the first. Raises CommandError if others differ from them."""
    import torch

    from multi_dnn_ros.backends.precision import PRECISIONS as FORMATS
    from multi_dnn_ros.partition.pool import UnitPool
    from multi_dnn_ros.partition.run import BatchRunner, check_outputs
    from multi_dnn_ros.partition.tables import table_path
    from multi_dnn_ros.partition.worker import NetworkRequest

    runs: Runs = {}
    outputs: tuple[Tensor, ...] = ()
    height, width = images.shape[2:]
    # Both outputs that are compared may deviate from those in float32.
    allowed = 2 * max(FORMATS[args.precision].tolerance(torch.device(unit.device)) for unit in units)
    with UnitPool(units, NetworkRequest(args.model, args.precision, args.weights, (width, height))) as pool:
        for unit, table in pool.tables.items():
            table.check_same(tables[unit], table_path(args.tables, args.model, unit, args.precision))
        runner = BatchRunner(pool, images)
        for subset, each in plans.items():
            if each is None:
                continue
            with progress_bar(f"{len(images)} images on {' + '.join(subset)}") as progress:
                runs[subset] = runner.run(each, args.repeats, progress)
            outputs = outputs or tuple(output.clone() for output in runner.outputs)
            check_outputs(" + ".join(subset), runner.outputs, outputs, allowed)
    return runs, outputs


def _measured(args: argparse.Namespace, unit: Unit, batches: Sequence[int], folder: Path | None) -> BatchTable:
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.partition.measure import measure_unit
    from multi_dnn_ros.partition.units import check_available
    from multi_dnn_ros.partition.worker import NetworkRequest

    check_available(args.units, args.precision)  # all of them, before the first is measured for minutes
    with progress_bar(unit="size") as progress:
        network = NetworkRequest(args.model, args.precision, args.weights, args.size)
        return measure_unit(unit, network, batches, args.repeats, folder, provenance(), progress)


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


def _subset_rows(plans: Plans, runs: Runs) -> list[dict[str, Any]]:
    """Predicted and, after a run, measured times of subsets."""
    return [
        {"units": " + ".join(subset), "images": " + ".join(map(str, each.images.values())) if each else "too many",
         "predicted_ms": each and each.total_ms, **({"measured_ms": each and runs[subset].total_ms} if runs else {})}
        for subset, each in plans.items()
    ]  # fmt: skip


def _plan_json(made: Plan) -> dict[str, Any]:
    return {"images": dict(made.images), "unit_ms": dict(made.ms), "predicted_ms": made.total_ms}


def _run_json(done: BatchRun) -> dict[str, Any]:
    rounds = [[asdict(share) for share in shares] for shares in done.rounds]
    return {**_plan_json(done.plan), "measured_ms": done.total_ms, "rounds": rounds}
