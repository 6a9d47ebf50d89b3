"""``multi-dnn partition``: split one batch over several units, by measured times."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import network_arguments
from multi_dnn_ros.cli.arguments import positive, size
from multi_dnn_ros.cli.commands import Commands, add_command, add_subcommands
from multi_dnn_ros.cli.options import check_files
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.planning.batch_units import Unit, UnitError
from multi_dnn_ros.settings.precisions import PRECISIONS

if TYPE_CHECKING:
    from torch import Tensor

    from multi_dnn_ros.partition.plan import Plan
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.partition.tables import BatchTable
    from multi_dnn_ros.partition.worker import NetworkRequest

_DETAILS = """\
The images of a batch run on several units at once, so that the last unit finishes as early as possible. First
`profile` measures a network on each unit; `plan` and `run` use these tables.

A unit is one of:
  cpu              all cores that this process may use
  cpu:8            8 threads
  cuda:0           a GPU
  openvino:gpu     an execution provider of ONNX Runtime (docs/devices.md)
"""
_EXAMPLES = """\
multi-dnn partition profile torchvision:resnet18 --units cpu:1,cuda:0 --max-batch 64
multi-dnn partition plan torchvision:resnet18 --batch 100
multi-dnn partition run torchvision:resnet18 --batch 100 --compare --report run.json
multi-dnn partition table torchvision:resnet18
multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
"""
_PROFILE = """\
The units are measured one after another, each alone, at 1, --max-batch, and 2^n - 1, 2^n and 2^n + 1, where times
change most. Each result is stored at once in the unit's table; sizes that are stored already are not measured again, so
that an interrupted command continues when it is repeated. A size that does not fit into memory is noted, and larger
ones are not tried.
"""
_PLAN = """\
Times between two measured batch sizes are interpolated. A unit gets no more images than it was measured for. Besides
the plan for all units, those for every subset of them are listed (with more than 8 units: only single units).
"""
_RUN = """\
The batch is divided as by `multi-dnn partition plan`, run once to warm up and then --samples times. Each unit runs in a
process of its own. Outputs are in the order of the inputs.

If a unit fails, or its process is killed, the command ends with an error and writes nothing: repeat it with the other
units. --compare also runs every subset of the units, and fails if their outputs differ by more than the precision
allows.
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "partition", "split one large batch over several devices", details=_DETAILS, examples=_EXAMPLES
    )
    actions = add_subcommands(parser, "action")

    action = add_command(actions, "profile", "measure a network on each unit by batch size", details=_PROFILE,
                         run=_profile, examples=_EXAMPLES.splitlines()[0])  # fmt: skip
    _add_common(action, units_required=True, loads=True)
    action.add_argument("--max-batch", type=positive, required=True, metavar="N", help="largest batch size to measure")
    _add_samples(action, "runs per batch size, of which medians are stored")

    action = add_command(actions, "plan", "compute how many images of a batch each unit gets", details=_PLAN,
                         run=_plan, examples=_EXAMPLES.splitlines()[1])  # fmt: skip
    _add_common(action)
    _add_planning(action)
    action.add_argument("--batch", type=positive, required=True, metavar="N", help="images in the batch")

    action = add_command(actions, "run", "run a batch on several units, as planned", details=_RUN, run=_run,
                         examples=_EXAMPLES.splitlines()[2])  # fmt: skip
    _add_common(action, loads=True)
    _add_planning(action)
    _add_samples(action, "timed runs, of which medians are reported")
    add = action.add_argument
    add("--batch", type=positive, metavar="N",
        help="number of random images, or of images to take from --input (default: all of --input)")  # fmt: skip
    add("--input", type=Path, metavar="NPY",
        help="images as the network takes them: a float32 array (N, 3, height, width)")  # fmt: skip
    add("--output", type=Path, metavar="NPZ", help="write the outputs to this file: output_0, output_1, ...")
    add("--compare", action="store_true", help="also run every subset of the units, and compare times and outputs")

    action = add_command(actions, "table", "print and correct tables", run=_table, examples=_EXAMPLES.splitlines()[3])
    _add_common(action)
    action.add_argument("--drop", type=positive, nargs="+", default=[], metavar="N",
                        help="first remove these batch sizes, which `profile` then measures again")  # fmt: skip

    action = add_command(actions, "io", "measure how long it takes to copy images to a unit and back", run=_io,
                         details="No network runs. On a CPU the images are copied within memory.",
                         examples=_EXAMPLES.splitlines()[4])  # fmt: skip
    _add_common(action, units_required=True, loads=True)
    _add_samples(action, "runs per batch size, of which medians are reported")
    add = action.add_argument
    add("--batch", type=positive, default=1, metavar="N", help="smallest batch size (default: %(default)s)")
    add("--max-batch", type=positive, metavar="N", help="largest batch size (default: --batch)")
    add("--increment", type=positive, default=1, metavar="N", help="step between batch sizes (default: %(default)s)")


def _units(text: str) -> tuple[Unit, ...]:
    """The type of --units."""
    from multi_dnn_ros.partition.units import parse_units

    try:
        return parse_units(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_common(parser: argparse.ArgumentParser, *, units_required: bool = False, loads: bool = False) -> None:
    """The network, the units and the folder of tables. loads: whether the network is loaded, with which weights.

    units_required: the units are measured, at --size; otherwise their tables are used, which have the size.
    """
    add = parser.add_argument
    network_arguments.add_model(parser)
    add("--units", type=_units, required=units_required, metavar="UNIT,...",
        help="units, such as cpu:8,cuda:0" + ("" if units_required else " (default: every unit that has a table)"),
        )  # fmt: skip
    add("--precision", choices=[name for name in PRECISIONS if name != "int8"], default="auto",
        help="precision, as parameter dnn.<dnn>.precision of the node (default: %(default)s)")  # fmt: skip
    add("--tables", type=Path, metavar="DIR", help="folder of tables (default: ~/.cache/multi_dnn_ros/partition)")
    if units_required:
        add("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")
    if loads:
        add("--weights", default="", metavar="WEIGHTS",
            help="weights of a torchvision network: a file, a name such as IMAGENET1K_V1, or random (default: random, "
            "which does not change the times)")  # fmt: skip


def _add_planning(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--search", choices=("exact", "greedy"), default="exact",
        help="how the plan is found: exact, by dynamic programming; greedy, as in the paper on batch partitioning "
        "(default: exact)")  # fmt: skip
    add("--report", type=Path, metavar="JSON", help="write plans, times and versions to this file")


def _add_samples(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--samples", type=positive, default=9, metavar="N", help=f"{what} (default: %(default)s)")


def _profile(args: argparse.Namespace) -> int:
    from multi_dnn_ros.partition.tables import sizes_to_measure, table_path

    for unit in args.units:
        table = _measured(args, unit, sizes_to_measure(args.max_batch), _folder(args))
        print(f"\n{table.model} on {table.unit}: {table.device}\n\n{_row_table(table)}")
        print(f"\nwritten to {table_path(_folder(args), args.model, unit.name, args.precision)}")
    return 0


def _io(args: argparse.Namespace) -> int:
    largest = args.max_batch or args.batch
    if largest < args.batch:
        raise UsageError(f"--max-batch is {largest}; it must be at least --batch, {args.batch}")
    for unit in args.units:
        table = _measured(args, unit, range(args.batch, largest + 1, args.increment), None)
        channels, height, width = table.shape
        mebibytes = channels * height * width * 4 / 2**20
        print(f"\nimages of {args.model} to {unit.name} and back, {mebibytes:.3g} MiB per image each way\n")
        print(_row_table(table))
    return 0


def _measured(args: argparse.Namespace, unit: Unit, batches: Sequence[int], folder: Path | None) -> BatchTable:
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.partition.measure import measure_unit
    from multi_dnn_ros.partition.units import check_available

    check_available(args.units, args.precision)  # all of them, before the first is measured for minutes
    with progress_bar(unit="size") as progress:
        return measure_unit(unit, _request(args, args.size), batches, args.samples, folder, provenance(), progress)


def _table(args: argparse.Namespace) -> int:
    from multi_dnn_ros.partition.tables import table_path, write_table

    for unit, table in _stored_tables(args).items():
        if args.drop:
            table = table.without(args.drop)
            write_table(table_path(_folder(args), args.model, unit, args.precision), table)
        print(f"\n{table.model} on {unit}, precision {table.precision}: {table.device}\n\n{_row_table(table)}")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from multi_dnn_ros.partition.plan import make_plan, plan_subsets

    check_files(args, "report")
    tables = _stored_tables(args)
    plan = make_plan(tables, args.batch, args.search)
    subsets = plan_subsets(tables, args.batch, args.search)
    print(_plan_table(plan))
    print(f"\n{_subset_table(subsets, {})}")
    _report(args, plan=_plan_json(plan), subsets=[_plan_json(each) for each in subsets.values() if each])
    return 0


def _run(args: argparse.Namespace) -> int:
    import torch

    from multi_dnn_ros.common.reporting import cpu_count
    from multi_dnn_ros.partition.plan import make_plan, plan_subsets
    from multi_dnn_ros.partition.units import check_available, parse_units
    from multi_dnn_ros.planning.batch_units import sharing_warnings

    check_files(args, "output", "report")
    tables = _stored_tables(args)
    units = [unit for name in tables for unit in parse_units(name)]
    check_available(units, args.precision)
    shape = next(iter(tables.values())).shape
    images = _read_images(args, shape)
    batch = args.batch if images is None else len(images)
    plan = make_plan(tables, batch, args.search)
    if images is None:  # only now, because the plan has shown that the units can hold them
        images = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    for warning in sharing_warnings([unit for unit in units if plan.images[unit.name]], cpu_count()):
        print(f"warning: {warning}", file=sys.stderr)
    subsets = plan_subsets(tables, batch, args.search) if args.compare else {}
    plans = {tuple(tables): plan, **{subset: each for subset, each in subsets.items() if each is not None}}
    runs, outputs = _run_plans(args, units, tables, images, plans)
    done = runs[tuple(tables)]
    print(_run_table(done))
    print(f"\npredicted {plan.total_ms:.4g} ms, measured {done.total_ms:.4g} ms "
          f"({done.total_ms / plan.total_ms - 1:+.1%}), {1e3 * batch / done.total_ms:.4g} images/s")  # fmt: skip
    if args.compare:
        print(f"\n{_subset_table(subsets, runs)}")
    if any(not output.isfinite().all() for output in outputs):
        print("warning: outputs have NaN or infinite values", file=sys.stderr)
    _write_outputs(args, outputs)
    _report(args, batch=batch, run=_run_json(done), subsets=[_run_json(run) for run in runs.values()])
    return 0


def _run_plans(
    args: argparse.Namespace,
    units: Sequence[Unit],
    tables: Mapping[str, BatchTable],
    images: Tensor,
    plans: Mapping[tuple[str, ...], Plan],
) -> tuple[dict[tuple[str, ...], BatchRun], tuple[Tensor, ...]]:
    """The runs of all plans, by units, and the outputs of the first. Raises CommandError if others differ from them."""
    import torch

    from multi_dnn_ros.backends.precision import PRECISIONS as FORMATS
    from multi_dnn_ros.partition.pool import UnitPool
    from multi_dnn_ros.partition.run import BatchRunner, check_outputs
    from multi_dnn_ros.partition.tables import table_path

    runs: dict[tuple[str, ...], BatchRun] = {}
    outputs: tuple[Tensor, ...] = ()
    height, width = images.shape[2:]
    # Both outputs that are compared may deviate from those in float32.
    allowed = 2 * max(FORMATS[args.precision].tolerance(torch.device(unit.device)) for unit in units)
    with UnitPool(units, _request(args, (width, height))) as pool:
        for unit, table in pool.tables.items():
            table.check_same(tables[unit], table_path(_folder(args), args.model, unit, args.precision))
        runner = BatchRunner(pool, images)
        for subset, plan in plans.items():
            with progress_bar(f"{len(images)} images on {' + '.join(subset)}") as progress:
                runs[subset] = runner.run(plan, args.samples, progress)
            outputs = outputs or tuple(output.clone() for output in runner.outputs)
            check_outputs(" + ".join(subset), runner.outputs, outputs, allowed)
    return runs, outputs


def _folder(args: argparse.Namespace) -> Path:
    """--tables, or its default."""
    from multi_dnn_ros.partition.tables import default_folder

    folder: Path | None = args.tables
    return folder if folder is not None else default_folder()


def _stored_tables(args: argparse.Namespace) -> dict[str, BatchTable]:
    from multi_dnn_ros.partition.tables import find_tables

    return find_tables(_folder(args), args.model, args.precision, [unit.name for unit in args.units or ()])


def _request(args: argparse.Namespace, size: tuple[int, int] | None) -> NetworkRequest:
    from multi_dnn_ros.partition.worker import NetworkRequest

    return NetworkRequest(args.model, args.precision, args.weights, size)


def _read_images(args: argparse.Namespace, shape: tuple[int, int, int]) -> Tensor | None:
    """The images of --input: (batch, *shape) float32; None without --input. Checks --batch and --output, too."""
    import numpy as np
    import torch

    from multi_dnn_ros.models.registry import source_of

    origin = source_of(args.model)
    if args.output is not None and not args.weights and origin is not None and origin.takes_weights:
        raise UsageError(f"--output needs --weights for {args.model}: a name such as IMAGENET1K_V1, a file, or random")
    if args.input is None:
        if args.batch is None:
            raise UsageError("--batch or --input is needed: the number of random images, or a file with images")
        return None
    try:
        images = np.load(args.input)
    except (OSError, ValueError, EOFError) as error:
        raise CommandError(f"--input {args.input} cannot be read: {error}") from None
    if not isinstance(images, np.ndarray) or images.dtype != np.float32 or images.shape[1:] != shape or not len(images):
        found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "several arrays"
        raise CommandError(f"--input {args.input} holds {found}; expected float32 (N, {', '.join(map(str, shape))})")
    if args.batch is not None and args.batch > len(images):
        raise UsageError(f"--batch is {args.batch}; --input {args.input} holds {len(images)} images")
    return torch.from_numpy(images[: args.batch])


def _write_outputs(args: argparse.Namespace, outputs: Sequence[Tensor]) -> None:
    import numpy as np

    from multi_dnn_ros.common.atomic_files import atomic_write

    if args.output is None:
        return
    arrays: dict[str, Any] = {f"output_{index}": output.numpy() for index, output in enumerate(outputs)}
    with atomic_write(args.output) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    print(f"outputs written to {args.output}")


def _report(args: argparse.Namespace, **content: Any) -> None:
    from multi_dnn_ros.common.reporting import provenance, write_json

    if args.report is not None:
        write_json(args.report, {**provenance(), "model": args.model, "precision": args.precision, **content})
        print(f"report written to {args.report}")


def _row_table(table: BatchTable) -> str:
    """The rows of one table: medians in milliseconds, for the total with half the interquartile range."""
    from multi_dnn_ros.common.reporting import table as markdown
    from multi_dnn_ros.common.reporting import three_digits as digits

    lines = [
        [str(row.batch), digits(row.input_ms), digits(row.compute_ms), digits(row.output_ms),
         f"{digits(row.total_ms)} ± {digits(row.spread_ms)}", digits(row.total_ms / row.batch), str(row.samples)]
        for row in table.rows
    ]  # fmt: skip
    if table.too_large:
        lines.append([str(table.too_large), *["-"] * 3, "out of memory", "-", "-"])
    return markdown(["batch", "input ms", "compute ms", "output ms", "total ms", "ms per image", "samples"], lines)


def _plan_table(plan: Plan) -> str:
    from multi_dnn_ros.common.reporting import table

    rows = [[unit, str(count), f"{plan.ms[unit]:.4g}"] for unit, count in plan.images.items()]
    return table(["unit", "images", "predicted ms"], rows)


def _run_table(done: BatchRun) -> str:
    """The round of median length."""
    from multi_dnn_ros.common.reporting import table

    end_ms = max(share.end_ms for share in done.typical)
    rows = []
    for share in done.typical:
        ms = (done.plan.ms[share.unit], share.end_ms, share.times.input_ms, share.times.compute_ms,
              share.times.output_ms)  # fmt: skip
        use = f"{(share.end_ms - share.begin_ms) / end_ms:.0%}"
        rows.append([share.unit, str(share.images), *(f"{value:.4g}" for value in ms), use])
    return table(["unit", "images", "predicted ms", "measured ms", "copy in", "network", "copy out", "use"], rows)


def _subset_table(plans: Mapping[tuple[str, ...], Plan | None], runs: Mapping[tuple[str, ...], BatchRun]) -> str:
    """Predicted and, after a run, measured times of subsets, compared with the best unit alone."""
    from multi_dnn_ros.common.reporting import table, with_change

    def best(times: Mapping[tuple[str, ...], float]) -> float | None:
        return min((ms for subset, ms in times.items() if len(subset) == 1), default=None)

    predicted = {subset: plan.total_ms for subset, plan in plans.items() if plan is not None}
    measured = {subset: run.total_ms for subset, run in runs.items()}
    rows = []
    for subset, plan in plans.items():
        images = " + ".join(map(str, plan.images.values())) if plan is not None else "too many"
        row = [" + ".join(subset), images, with_change(predicted.get(subset), best(predicted))]
        rows.append([*row, with_change(measured.get(subset), best(measured))] if runs else row)
    head = ["units", "images", "predicted ms (against the best unit alone)"]
    return table([*head, "measured ms (the same)"] if runs else head, rows)


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {"images": dict(plan.images), "unit_ms": dict(plan.ms), "predicted_ms": plan.total_ms}


def _run_json(done: BatchRun) -> dict[str, Any]:
    rounds = [[asdict(share) for share in shares] for shares in done.rounds]
    return {**_plan_json(done.plan), "measured_ms": done.total_ms, "rounds": rounds}
