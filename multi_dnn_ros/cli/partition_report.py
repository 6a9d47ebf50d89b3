"""Plans and runs of ``multi-dnn partition`` as tables and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multi_dnn_ros.partition.adjust import AdjustedRun
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.planning.batch_plan import Plan
    from multi_dnn_ros.planning.batch_table import BatchTable
    from multi_dnn_ros.planning.unit_slowdowns import UnitSet


def image_counts(plan: Plan) -> str:
    return " + ".join(str(count) for count in plan.images.values())


def beyond_tables(tables: Iterable[BatchTable]) -> str:
    """Why these units cannot be planned for a batch that exceeds their tables: no memory, or not measured so far."""
    units = tuple(tables)
    if all(any(row.failure for row in table.rows) for table in units):
        return "cannot hold it"
    return f"measured up to {sum(table.largest for table in units)}"


def plan_table(plan: Plan, tables: Mapping[str, BatchTable]) -> str:
    from multi_dnn_ros.common.reporting import table

    rows = []
    for name, count in plan.images.items():
        own, batch = tables[name], plan.batch
        alone = f"{own.predict_ms(batch):.4g}" if own.largest >= batch else beyond_tables([own])
        rows.append([name, str(count), f"{plan.ms[name]:.4g}", alone])
    return table(["unit", "images", "predicted ms", "whole batch on this unit, ms"], rows)


def subset_table(plans: Mapping[tuple[str, ...], Plan | None], tables: Mapping[str, BatchTable]) -> str:
    from multi_dnn_ros.common.reporting import table, with_change

    alone = [plan.total_ms for subset, plan in plans.items() if plan is not None and len(subset) == 1]
    best = min(alone, default=None)
    rows = [
        [
            " + ".join(subset),
            image_counts(plan) if plan else "-",
            with_change(plan.total_ms, best) if plan else beyond_tables(tables[name] for name in subset),
        ]
        for subset, plan in plans.items()
    ]
    return table(["units", "images", "predicted ms (against the best unit alone)"], rows)


def run_table(plan: Plan, done: BatchRun) -> str:
    from multi_dnn_ros.common.reporting import table

    measured, busy, parts = done.unit_ms(), done.utilization(), done.parts_ms()
    head = ["unit", "images", "predicted ms", "measured ms", "copy in", "network", "copy out", "host", "utilization"]
    rows = []
    for name, count in plan.images.items():
        row = [name, str(count), f"{plan.ms[name]:.4g}"]
        if name in measured:
            row += [f"{ms:.4g}" for ms in (measured[name], *dataclasses.astuple(parts[name]))]
            row.append(f"{busy[name]:.0%}")
        rows.append(row + ["-"] * (len(head) - len(row)))
    return table(head, rows)


def slowdown_text(measured: UnitSet | None) -> str:
    """A line on the factors by which the predictions differ from the tables; empty: by none."""
    if measured is None:
        return ""
    factors = ", ".join(f"{name} {factor:.2f}" for name, factor in measured.factors.items())
    return f"by a run of {measured.measured_at}, these units together need this multiple of their tables: {factors}\n"


def adjusted_text(plan: Plan, adjusted: AdjustedRun) -> str:
    """How a batch divided by `plan` was divided again."""
    from multi_dnn_ros.partition.adjust import ends_ms

    ends = ends_ms(adjusted.first)
    factors = ", ".join(f"{name} {factor:.2f} ({ends[name]:.4g} ms)" for name, factor in adjusted.factors.items())
    text = f"while all units run, they need this multiple of the time in their tables: {factors}\n"
    before = f"{image_counts(plan)} images, {adjusted.first.measured_ms:.4g} ms"
    if not adjusted.kept:
        return f"{text}divided again: {image_counts(adjusted.plan)} images (before: {before})"
    if adjusted.tried is not None and adjusted.done.failures:
        return f"{text}another division failed, {image_counts(adjusted.tried)} images; the first is used: {before}"
    return f"{text}no other division is faster: {before}"


def adjusted_json(plan: Plan, adjusted: AdjustedRun) -> dict[str, Any]:
    """The plan used and its run; if a batch divided by `plan` was to be divided again, also how."""
    content = {"plan": plan_json(adjusted.plan), **run_json(adjusted.done)}
    if adjusted.factors:
        content["factors"] = dict(adjusted.factors)
        content["first"] = {"plan": plan_json(plan), **run_json(adjusted.first)}
    return content


def failures_text(done: BatchRun) -> str:
    """Which units failed, and what became of their images."""
    count = len(done.failures)
    text = "1 unit failed" if count == 1 else f"{count} units failed"
    if done.repeated_images:
        images = "1 image" if done.repeated_images == 1 else f"{done.repeated_images} images"
        text += f"; {images} were computed by other units in {done.recovery_ms:.4g} ms"
    else:
        text += " after the outputs were complete"
    return f"{text}: {'; '.join(done.failures)}"


def measured_text(plan: Plan, done: BatchRun) -> tuple[str, str]:
    """The measured time in milliseconds, and its difference from the prediction; "-" if no round was complete."""
    if not done.rounds:
        return "-", "-"
    return f"{done.measured_ms:.4g}", f"{done.measured_ms / plan.total_ms - 1:+.1%}"


def plan_json(plan: Plan) -> dict[str, Any]:
    return {"search": plan.search, "images": dict(plan.images), "unit_ms": dict(plan.ms), "predicted_ms": plan.total_ms}


def run_json(done: BatchRun) -> dict[str, Any]:
    return {
        "measured_ms": done.measured_ms if done.rounds else None,
        "rounds": [[dataclasses.asdict(share) for share in shares] for shares in done.rounds],
        "parts_ms": {name: vars(times) for name, times in done.parts_ms().items()},
        "utilization": done.utilization(),
        "failures": list(done.failures),
        "repeated_images": done.repeated_images,
    }
