"""``multi-dnn partition run``: run a batch on several units, and check the outputs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import positive, positive_float
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_loading
from multi_dnn_ros.cli.options import add_plot, add_seed, check_files
from multi_dnn_ros.cli.partition_arguments import (
    add_model,
    add_search,
    add_units,
    network_request,
    stored_tables,
    tables_folder,
    units,
)
from multi_dnn_ros.cli.partition_report import (
    adjusted_json,
    adjusted_text,
    beyond_tables,
    failures_text,
    image_counts,
    measured_text,
    plan_table,
    run_table,
    slowdown_text,
)
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.planning.batch_units import sharing_warnings

if TYPE_CHECKING:
    from multi_dnn_ros.partition.adjust import AdjustedRun
    from multi_dnn_ros.partition.executor import Array
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.partition.session import BatchSession
    from multi_dnn_ros.planning.batch_plan import Plan
    from multi_dnn_ros.planning.batch_table import BatchTable
    from multi_dnn_ros.planning.batch_units import Unit
    from multi_dnn_ros.planning.unit_slowdowns import UnitSlowdowns

_DETAILS = """\
The batch is divided as by `multi-dnn partition plan`, and then again by the times that the units need while all of them
run (--no-adjust: only as planned). Each CPU unit runs in its own process; the units of one GPU are
threads of one process. Outputs are in the order of the inputs. To check them, one of the units, the one with the fewest
images, processes the first and the last image of every unit again.

If a unit fails during the run, the others compute its images. Outputs are written only if they are complete; otherwise
the exit code is 1. The report is written after the run and after each subset.
"""
_EXAMPLES = """\
multi-dnn partition run torchvision:resnet18 --batch 48 --compare --report run.json
multi-dnn partition run torchvision:resnet18 --weights IMAGENET1K_V1 --input images.npy --output outputs.npz
"""


def add_action(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare run."""
    parser = add_command(
        actions, "run", "run a batch on several units, as planned", details=_DETAILS, examples=_EXAMPLES, run=_run
    )
    add_model(parser)
    add_units(parser, required=False)
    add_search(parser)
    add_loading(parser, weights="")
    add = parser.add_argument
    add("--batch", type=positive, metavar="N",
        help="number of random images, or of images to take from --input (default: all of --input)")  # fmt: skip
    add("--input", type=Path, metavar="NPY",
        help="images as the network takes them: a float32 array (N, 3, height, width)")  # fmt: skip
    add_seed(parser, "the random images")
    add("--rounds", type=positive, default=5, metavar="N",
        help="timed runs, of which medians are reported (default: %(default)s)")  # fmt: skip
    add("--adjust", action=argparse.BooleanOptionalAction, default=True,
        help="with several units, divide the batch again by the times measured while all of them run "
        "(default: %(default)s)")  # fmt: skip
    add("--timeout", type=positive_float, default=600.0, metavar="S",
        help="seconds that one run may take before a unit counts as failed (default: %(default)g)")  # fmt: skip
    add("--compare", action="store_true",
        help="also run the subsets of the units that `plan` lists, and compare their outputs")  # fmt: skip
    add("--subset", type=units, action="append", default=[], metavar="UNIT,...",
        help="also run this subset of the units and compare its outputs; may be repeated")  # fmt: skip
    add_plot(parser, "a Gantt chart of predicted and measured times")
    add("--output", type=Path, metavar="NPZ", help="write the outputs to this file: output_0, output_1, ...")
    add("--report", type=Path, metavar="JSON", help="write times, utilization and versions to this file")


def _takes_weights(model: str) -> bool:
    from multi_dnn_ros.models.registry import source_of

    origin = source_of(model)
    return origin is not None and origin.takes_weights


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.partition.executor import random_images
    from multi_dnn_ros.partition.session import BatchSession
    from multi_dnn_ros.planning.batch_plan import plan_together
    from multi_dnn_ros.planning.unit_slowdowns import read_slowdowns

    check_files(args, "plot", "output", "report")
    if args.output is not None and not args.weights and _takes_weights(args.model):
        raise UsageError(
            f"--output needs --weights for {args.model}: a name such as IMAGENET1K_V1, a file, or random if the "
            "outputs do not matter"
        )
    chosen, tables = stored_tables(args, check=True)
    subsets = [tuple(unit.name for unit in subset) for subset in args.subset]
    if unknown := sorted({name for subset in subsets for name in subset} - tables.keys()):
        raise UsageError(f"--subset names {', '.join(unknown)}; allowed: {', '.join(tables)}")
    shape = next(iter(tables.values())).shape
    images = _input(args, shape) if args.input is not None else None
    if images is None and args.batch is None:
        raise UsageError("--batch or --input is needed: the number of random images, or a file with images")
    slowdowns = read_slowdowns(tables_folder(args), args.model, args.precision)
    plan = plan_together(tables, args.batch if images is None else len(images), args.search, slowdowns.times)
    if images is None:  # only now, because the plan has shown that the units can hold them
        images = random_images(shape, args.batch, args.seed)
    warn = partial(_print_warnings, chosen, set())
    warn(plan)
    print(plan_table(plan, tables))
    print(slowdown_text(slowdowns.find(tables)), end="")
    with BatchSession(chosen, tables, plan, network_request(args), args.precision, timeout_s=args.timeout) as session:
        _run_on(session, args, tables, slowdowns, subsets, images, warn)
    return 0


def _print_warnings(chosen: Sequence[Unit], printed: set[str], plan: Plan) -> None:
    """Warn about units of the plan that slow each other down. printed: what was printed before, which is extended."""
    from multi_dnn_ros.common.reporting import cpu_count

    for warning in sharing_warnings([unit for unit in chosen if plan.images[unit.name]], cpu_count()):
        if warning not in printed:
            print(f"warning: {warning}")
        printed.add(warning)


def _run_on(
    session: BatchSession,
    args: argparse.Namespace,
    tables: Mapping[str, BatchTable],
    slowdowns: UnitSlowdowns,
    subsets: Sequence[tuple[str, ...]],
    images: Array,
    warn: Callable[[Plan], None],
) -> None:
    """Run the plan of the session, compare outputs, print tables and write files.

    slowdowns: by which, with the tables, the batch was divided. warn: called with the plan used.
    """
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.planning.batch_plan import plan_subsets

    first_plan, batch = session.plan, len(images)
    adjusted = _run_plan(session, args, tables, images)
    if adjusted.factors:
        print(f"\n{adjusted_text(first_plan, adjusted)}")
    plan, done = adjusted.plan, adjusted.done
    warn(plan)
    largest = _check_outputs(session, tables, plan, images, done)
    print(f"\n{run_table(plan, done)}")
    measured, error = measured_text(plan, done)
    found = f"measured {measured} ms ({error})"
    if not done.rounds:
        found = "not measured: a unit failed before the first timed run was complete"
    source = "the tables" if slowdowns.find(tables) is None else "the tables and an earlier run"
    by = f" from {source}" if adjusted.factors and adjusted.kept else ""
    print(f"\npredicted{by} {plan.total_ms:.4g} ms, {found}")
    if largest is not None:
        print(f"largest difference from another unit's outputs: {largest:.2g} of the largest value")
    if done.failures:
        print(failures_text(done))
    if invalid := _invalid_images(done.outputs):
        found = f"{len(invalid)} of {batch} images have NaN or infinite values"
        print(f"warning: the outputs of {found}; the first is image {invalid[0]}, counted from 0")
    if args.output is not None:
        _write_outputs(args.output, done.outputs)
        print(f"outputs of {batch} images written to {args.output}")

    def report(compared: Sequence[Mapping[str, Any]]) -> None:
        if args.report is not None:
            write_json(args.report, {**provenance(), "model": args.model, "batch": batch,
                                     **adjusted_json(first_plan, adjusted),
                                     "difference": largest, "subsets": list(compared)})  # fmt: skip

    report([])
    if args.compare or subsets:
        others = plan_subsets(tables, batch, args.search, None if args.compare else subsets, slowdowns.times)
        _compare(session, args, tables, others, images, (first_plan, adjusted), report)
    if args.plot is not None:
        from multi_dnn_ros.partition.plots import plan_bars, run_bars, write_gantt

        bars = {"predicted": plan_bars(plan), **({"measured": run_bars(done)} if done.rounds else {})}
        write_gantt(args.plot, f"{args.model}, batch {batch}", bars)


def _run_plan(
    session: BatchSession, args: argparse.Namespace, tables: Mapping[str, BatchTable], images: Array
) -> AdjustedRun:
    """Run the plan of the session, unless --no-adjust also divided again. Raises CommandError when no unit is left.

    The times of several units together are kept for later plans of these units.
    """
    from multi_dnn_ros.partition.adjust import factors_of, run_adjusted, run_as_planned
    from multi_dnn_ros.planning.unit_slowdowns import record_slowdowns

    units = {name: tables[name] for name in session.plan.images}
    with progress_bar(f"{len(images)} images on {' + '.join(session.plan.used)}") as progress:
        adjusted = (
            run_adjusted(session, tables, images, args.rounds, progress)
            if args.adjust
            else run_as_planned(session, images, args.rounds, progress)
        )
    plan, done = adjusted.plan, adjusted.done
    if len(plan.used) > 1 and done.rounds and not done.failures:
        factors = factors_of(done, plan, tables)
        try:
            record_slowdowns(tables_folder(args), args.model, args.precision, units, factors, plan.images)
        except OSError as error:
            print(f"warning: the times of the units together are not kept: {error}")
    return adjusted


def _check_outputs(
    session: BatchSession, tables: Mapping[str, BatchTable], plan: Plan, images: Array, done: BatchRun
) -> float | None:
    """Compare the outputs of the first and the last image of every unit with those of one unit that computes all these
    images alone: the one with the fewest images.

    Returns the largest difference, relative to the largest output; None, with a warning, if no unit but the one that
    computed the batch can compute these images. Raises CommandError if the difference exceeds the tolerance.
    """
    working = [name for name in plan.images if name not in session.failures]
    computed_by = set(plan.used)
    if done.repeated_images:  # otherwise units failed only later, if at all
        computed_by = {name for name in plan.used if name in working} or set(working)
    chosen, first = set(), 0
    for count in plan.images.values():
        chosen |= {first, first + count - 1} if count else set()
        first += count
    # The outputs of a unit agree with its own, right or wrong, so the unit that computed the fewest images comes first.
    for name in sorted(working, key=lambda unit: (plan.images[unit], unit)):
        if computed_by == {name}:
            continue
        try:
            return _difference(session, name, tables[name], images, sorted(chosen), done)
        except CommandError:
            if name not in session.failures:
                raise
            # The outputs are complete; only the unit that should have confirmed them has failed.
    print("warning: the outputs were not compared: " + (
        "no other unit is left" if session.failures else "there is no other unit"
    ))  # fmt: skip
    return None


def _invalid_images(outputs: Sequence[Array]) -> list[int]:
    """The images of which an output is NaN or infinite. outputs: (images, ...) each."""
    import numpy as np

    valid = [np.isfinite(output).reshape(len(output), -1).all(axis=1) for output in outputs if output.size]
    return np.flatnonzero(~np.logical_and.reduce(valid)).tolist() if valid else []


def _difference(
    session: BatchSession, name: str, table: BatchTable, images: Array, chosen: Sequence[int], done: BatchRun
) -> float:
    """The largest difference between the outputs of the chosen images and those of one unit. Raises CommandError."""
    from multi_dnn_ros.partition.run import disagreement, run_rounds
    from multi_dnn_ros.planning.batch_plan import plan_exact

    largest = 0.0
    for begin in range(0, len(chosen), table.largest):
        part = list(chosen[begin : begin + table.largest])
        session.change_plan(plan_exact({name: table}, len(part)))
        with progress_bar(f"{len(part)} images on {name} to compare the outputs") as progress:
            reference = run_rounds(session, images[part], progress=progress)
        largest = max(largest, disagreement([output[part] for output in done.outputs], reference.outputs))
        allowed = 2 * max(done.tolerance, reference.tolerance)  # both may deviate
        if largest > allowed:
            raise CommandError(
                f"outputs differ from those of {name} alone by {largest:.2g} of the largest value; allowed: "
                f"{allowed:.2g}; no outputs were written"
            )
    return largest


def _compare(
    session: BatchSession,
    args: argparse.Namespace,
    tables: Mapping[str, BatchTable],
    plans: Mapping[tuple[str, ...], Plan | None],
    images: Array,
    all_units: tuple[Plan, AdjustedRun],
    report: Callable[[Sequence[Mapping[str, Any]]], None],
) -> None:
    """Run the plans of these subsets of the units and print a table of times.

    all_units: plan by the tables and run of all units, which are not run again. report: called after each subset with
    the figures so far.
    """
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.partition.run import disagreement

    rows, entries = [], list[dict[str, Any]]()
    for subset, plan in plans.items():
        if plan is None:
            rows.append([" + ".join(subset), "-", "-", "-", "-", beyond_tables(tables[name] for name in subset)])
            continue
        try:
            if set(subset) == set(tables):
                plan, adjusted = all_units
                subset = tuple(plan.images)  # in the order of its numbers of images
            else:
                session.change_plan(plan)
                adjusted = _run_plan(session, args, tables, images)
        except CommandError as error:  # its only unit failed; other subsets may do without it
            rows.append([" + ".join(subset), image_counts(plan), f"{plan.total_ms:.4g}", "-", "-", str(error)])
            continue
        used, done = adjusted.plan, adjusted.done
        difference = disagreement(done.outputs, all_units[1].done.outputs)
        rows.append([" + ".join(subset), image_counts(used), f"{used.total_ms:.4g}", *measured_text(used, done),
                     f"{difference:.2g}"])  # fmt: skip
        entries.append({"units": list(subset), **adjusted_json(plan, adjusted), "difference": difference})
        report(entries)
    print("\n" + table(["units", "images", "predicted ms", "measured ms", "error", "difference"], rows))


def _input(args: argparse.Namespace, shape: tuple[int, int, int]) -> Array:
    """The images of --input: (batch, *shape) float32."""
    import numpy as np

    try:
        images = np.load(args.input)
    except (OSError, ValueError, EOFError) as error:
        raise CommandError(f"--input {args.input} cannot be read: {error}") from None
    if not isinstance(images, np.ndarray) or images.dtype != np.float32 or images.shape[1:] != shape or not len(images):
        found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "several arrays"
        raise CommandError(f"--input {args.input} holds {found}; expected float32 (N, {', '.join(map(str, shape))})")
    if args.batch is not None and args.batch > len(images):
        raise UsageError(f"--batch is {args.batch}; --input {args.input} holds {len(images)} images")
    return images[: args.batch]


def _write_outputs(path: Path, outputs: Sequence[Array]) -> None:
    import numpy as np

    from multi_dnn_ros.common.atomic_files import atomic_write

    with atomic_write(path) as temporary, temporary.open("wb") as file:
        arrays: dict[str, Any] = {f"output_{index}": output for index, output in enumerate(outputs)}
        np.savez(file, **arrays)
