"""``multi-dnn partition plan`` and ``run``: which unit gets how many images, and what comes of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural, positive, positive_float
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.cli.partition_arguments import (
    add_model,
    add_network,
    add_units,
    network_request,
    stored_tables,
)
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extras import require
from multi_dnn_ros.planning.batch_units import Unit, oversubscription_warning

if TYPE_CHECKING:
    from multi_dnn_ros.partition.executor import Array
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.planning.batch_plan import Plan
    from multi_dnn_ros.planning.batch_table import BatchTable

_PLAN = """\
Divide a batch among the units so that the last one ends as early as possible, by the tables of `multi-dnn partition
profile`. Times of batch sizes between two measured ones lie on the line between them.
"""
_RUN = """\
Divide a batch and run it, each unit in its own process. Outputs are in the order of the inputs; the first and the last
image of each unit are compared with the outputs of another unit. When a unit fails in the middle, the others compute
its images; outputs are written when all are there, or not at all (exit code 1).
"""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare them."""
    plan = actions.add_parser("plan", help="which unit gets how many images", description=_PLAN,
                              formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_plan(plan)
    add = plan.add_argument
    add("--batch", type=positive, required=True, metavar="N", help="images of the batch")
    add("--unchecked", action="store_true", help="use tables that were made on other machines or versions, too")
    add("--plot", type=Path, metavar="PNG", help="write a Gantt chart there")
    add("--output", type=Path, metavar="JSON", help="write the plans there")
    plan.set_defaults(run=_plan)

    run = actions.add_parser("run", help="run a batch as planned", description=_RUN,
                             formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_plan(run)
    add_network(run)
    add = run.add_argument
    add("--batch", type=positive, metavar="N", help="random images; or the first N of --input")
    add("--input", type=Path, metavar="NPY", help="images (N, 3, height, width) float32, as the network takes them")
    add("--seed", type=natural, default=0, help="of random images (default: %(default)s)")
    add("--rounds", type=positive, default=5, metavar="N", help="timed runs; medians count (default: %(default)s)")
    add("--timeout", type=positive_float, default=600.0, metavar="SECONDS",
        help="of one round, after which a unit counts as lost (default: %(default)s)")  # fmt: skip
    add("--compare", action="store_true", help="run every subset of the units, and compare their outputs")
    add("--plot", type=Path, metavar="PNG", help="write a Gantt chart of predicted and measured times there")
    add("--output", type=Path, metavar="NPZ", help="write the outputs there: output_0, output_1, ...")
    add("--report", type=Path, metavar="JSON", help="write times, utilization and versions there")
    run.set_defaults(run=_run)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_units(parser, required=False)
    parser.add_argument("--search", choices=("exact", "greedy"), default="exact",
        help="exact: dynamic programming; greedy: as the paper of batch partitioning (default: exact)")  # fmt: skip


def _plan(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.planning.batch_plan import SEARCHES, plan_subsets

    _check_files(args)
    _, tables = stored_tables(args, check=not args.unchecked)
    plan = SEARCHES[args.search](tables, args.batch)
    subsets = plan_subsets(tables, args.batch, args.search)
    print(_plan_table(plan, tables))
    print(f"\n{_subset_table(subsets)}")
    if args.plot is not None:
        from multi_dnn_ros.partition.plots import plan_bars, write_gantt

        write_gantt(args.plot, f"{args.model}, batch {args.batch}", {"predicted": plan_bars(plan)})
        print(f"\nGantt chart in {args.plot}")
    if args.output is not None:
        write_json(args.output, {**provenance(), "model": args.model, "plan": _plan_json(plan),
                                 "subsets": [_plan_json(of) for of in subsets.values() if of]})  # fmt: skip
    return 0


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import cpu_count, provenance, write_json
    from multi_dnn_ros.planning.batch_plan import SEARCHES, plan_subsets

    _check_files(args)
    units, tables = stored_tables(args, check=True)
    shape = next(iter(tables.values())).shape
    images = _images(args, shape)
    batch = len(images)
    plan = SEARCHES[args.search](tables, batch)
    warning = oversubscription_warning([unit for unit in units if plan.images[unit.name]], cpu_count())
    if warning:
        print(f"warning: {warning}")
    print(_plan_table(plan, tables))
    done = _measure(args, units, tables, plan, images)
    largest = _check_outputs(args, units, tables, plan, images, done)
    print(f"\n{_run_table(plan, done)}")
    found = f"measured {done.measured_ms:.4g} ms ({done.measured_ms / plan.total_ms - 1:+.1%})"
    if not done.rounds:
        found = "not measured, as a unit failed before a round was complete"
    print(f"\npredicted {plan.total_ms:.4g} ms, {found}")
    print(f"largest difference from another unit's outputs: {largest:.2g} of their scale")
    if done.failures:
        print(f"{len(done.failures)} units failed, {done.repeated_images} images were computed by others in "
              f"{done.recovery_ms:.4g} ms: {'; '.join(done.failures)}")  # fmt: skip
    if args.output is not None:
        _write_outputs(args.output, done.outputs)
        print(f"outputs of {batch} images in {args.output}")
    compared: list[dict[str, Any]] = []
    if args.compare:
        others = plan_subsets(tables, batch, args.search)
        compared = _compare(args, units, tables, others, images, done)
    if args.plot is not None:
        from multi_dnn_ros.partition.plots import plan_bars, run_bars, write_gantt

        bars = {"predicted": plan_bars(plan), **({"measured": run_bars(done)} if done.rounds else {})}
        write_gantt(args.plot, f"{args.model}, batch {batch}", bars)
    if args.report is not None:
        write_json(args.report, {**provenance(), "model": args.model, "batch": batch, "plan": _plan_json(plan),
                                 **_run_json(done), "difference": largest, "subsets": compared})  # fmt: skip
    return 0


def _measure(
    args: argparse.Namespace, units: Sequence[Unit], tables: Mapping[str, BatchTable], plan: Plan, images: Array
) -> BatchRun:
    from multi_dnn_ros.partition.run import run_batch

    own = {name: tables[name] for name in plan.images}
    return run_batch(units, own, plan, network_request(args), args.precision, images, rounds=args.rounds,
                     timeout_s=args.timeout)  # fmt: skip


def _check_outputs(
    args: argparse.Namespace,
    units: Sequence[Unit],
    tables: Mapping[str, BatchTable],
    plan: Plan,
    images: Array,
    done: BatchRun,
) -> float:
    """The largest difference from one unit's outputs at the borders of the shares; CommandError above the tolerance."""
    from multi_dnn_ros.partition.run import disagreement, run_batch
    from multi_dnn_ros.planning.batch_plan import plan_exact

    lost = {failure.split()[1] for failure in done.failures}
    names = [name for name in tables if name not in lost]
    borders, first = set(), 0
    for count in plan.images.values():
        borders |= {first, first + count - 1} if count else set()
        first += count
    chosen = sorted(borders)
    # The unit whose own images the fewest are: comparing a unit with itself shows nothing.
    name = min((of for of in names if tables[of].largest >= 1), key=lambda of: (plan.images.get(of, 0), of))
    largest = 0.0
    step = tables[name].largest
    for begin in range(0, len(chosen), step):
        part = chosen[begin : begin + step]
        alone = plan_exact({name: tables[name]}, len(part))
        one = run_batch(units, {name: tables[name]}, alone, network_request(args), args.precision, images[part])
        largest = max(largest, disagreement([output[part] for output in done.outputs], one.outputs))
        allowed = 2 * max(done.tolerance, one.tolerance)  # both may be off
        if largest > allowed:
            raise CommandError(
                f"outputs differ from those of {name} alone by {largest:.2g} of their scale; allowed: {allowed:.2g}; "
                "no outputs were written"
            )
    return largest


def _compare(
    args: argparse.Namespace,
    units: Sequence[Unit],
    tables: Mapping[str, BatchTable],
    plans: Mapping[tuple[str, ...], Plan | None],
    images: Array,
    first: BatchRun,
) -> list[dict[str, Any]]:
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.partition.run import disagreement

    rows, entries = [], []
    for subset, plan in plans.items():
        if plan is None:
            rows.append([" + ".join(subset), "-", "-", "-", "-", "cannot hold the batch"])
            continue
        try:
            done = _measure(args, units, tables, plan, images)
        except CommandError as error:  # its only unit failed; the other subsets may not contain it
            rows.append([" + ".join(subset), _counts(plan), f"{plan.total_ms:.4g}", "-", "-", str(error)])
            continue
        difference = disagreement(done.outputs, first.outputs)
        rows.append([" + ".join(subset), _counts(plan), f"{plan.total_ms:.4g}", f"{done.measured_ms:.4g}",
                     f"{done.measured_ms / plan.total_ms - 1:+.1%}", f"{difference:.2g}"])  # fmt: skip
        entries.append({"units": list(subset), "plan": _plan_json(plan), **_run_json(done), "difference": difference})
    print("\n" + table(["units", "images", "predicted ms", "measured ms", "error", "difference"], rows))
    return entries


def _images(args: argparse.Namespace, shape: tuple[int, int, int]) -> Array:
    import numpy as np

    from multi_dnn_ros.partition.executor import random_images

    if args.input is None:
        if args.batch is None:
            raise UsageError("--batch or --input is needed: how many images")
        return random_images(shape, args.batch, args.seed)
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


def _check_files(args: argparse.Namespace) -> None:
    if args.plot is not None:
        require("--plot", "matplotlib")
    for option in ("plot", "output", "report"):
        path = getattr(args, option, None)
        if path is not None:
            check_writable(f"--{option}", path)


def _write_outputs(path: Path, outputs: Sequence[Array]) -> None:
    import numpy as np

    from multi_dnn_ros.common.atomic_files import atomic_write

    with atomic_write(path) as beside, beside.open("wb") as file:
        arrays: dict[str, Any] = {f"output_{index}": output for index, output in enumerate(outputs)}
        np.savez(file, **arrays)


def _counts(plan: Plan) -> str:
    return " + ".join(str(count) for count in plan.images.values())


def _plan_table(plan: Plan, tables: Mapping[str, BatchTable]) -> str:
    from multi_dnn_ros.common.reporting import table

    rows = [
        [name, str(count), f"{plan.ms[name]:.4g}",
         f"{tables[name].predict_ms(plan.batch):.4g}" if tables[name].largest >= plan.batch else "cannot hold it"]
        for name, count in plan.images.items()
    ]  # fmt: skip
    return table(["unit", "images", "predicted ms", "ms of the batch alone"], rows)


def _subset_table(plans: Mapping[tuple[str, ...], Plan | None]) -> str:
    from multi_dnn_ros.common.reporting import table, with_change

    alone = [plan.total_ms for subset, plan in plans.items() if plan is not None and len(subset) == 1]
    best = min(alone, default=None)
    rows = [
        [
            " + ".join(subset),
            _counts(plan) if plan else "-",
            with_change(plan.total_ms, best) if plan else "cannot hold it",
        ]
        for subset, plan in plans.items()
    ]
    return table(["units", "images", "predicted ms (against the best unit alone)"], rows)


def _run_table(plan: Plan, done: BatchRun) -> str:
    from multi_dnn_ros.common.reporting import table

    measured, busy = done.unit_ms(), done.utilization()
    rows = [
        [name, str(count), f"{plan.ms[name]:.4g}", f"{measured[name]:.4g}" if name in measured else "-",
         f"{busy[name]:.0%}" if name in busy else "-"]
        for name, count in plan.images.items()
    ]  # fmt: skip
    return table(["unit", "images", "predicted ms", "measured ms", "utilization"], rows)


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {"search": plan.search, "images": dict(plan.images), "unit_ms": dict(plan.ms), "predicted_ms": plan.total_ms}


def _run_json(done: BatchRun) -> dict[str, Any]:
    return {
        "measured_ms": done.measured_ms if done.rounds else None,
        "rounds": [[vars(share) for share in shares] for shares in done.rounds],
        "utilization": done.utilization(),
        "failures": list(done.failures),
        "repeated_images": done.repeated_images,
    }
