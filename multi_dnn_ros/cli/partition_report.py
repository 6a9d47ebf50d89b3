"""Plans and runs of ``multi-dnn partition`` as tables and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multi_dnn_ros.partition.adjust import AdjustedRun
    from multi_dnn_ros.partition.run import BatchRun
    from multi_dnn_ros.planning.batch_plan import Plan
    from multi_dnn_ros.planning.batch_table import BatchTable


def image_counts(plan: Plan) -> str:
    return " + ".join(str(count) for count in plan.images.values())


def plan_table(plan: Plan, tables: Mapping[str, BatchTable]) -> str:
    from multi_dnn_ros.common.reporting import table

    rows = [
        [name, str(count), f"{plan.ms[name]:.4g}",
         f"{tables[name].predict_ms(plan.batch):.4g}" if tables[name].largest >= plan.batch else "cannot hold it"]
        for name, count in plan.images.items()
    ]  # fmt: skip
    return table(["unit", "images", "predicted ms", "whole batch on this unit, ms"], rows)


def subset_table(plans: Mapping[tuple[str, ...], Plan | None]) -> str:
    from multi_dnn_ros.common.reporting import table, with_change

    alone = [plan.total_ms for subset, plan in plans.items() if plan is not None and len(subset) == 1]
    best = min(alone, default=None)
    rows = [
        [
            " + ".join(subset),
            image_counts(plan) if plan else "-",
            with_change(plan.total_ms, best) if plan else "cannot hold it",
        ]
        for subset, plan in plans.items()
    ]
    return table(["units", "images", "predicted ms (against the best unit alone)"], rows)


def run_table(plan: Plan, done: BatchRun) -> str:
    from multi_dnn_ros.common.reporting import table

    measured, busy, parts = done.unit_ms(), done.utilization(), done.parts_ms()
    rows = []
    for name, count in plan.images.items():
        row = [name, str(count), f"{plan.ms[name]:.4g}"]
        if name in measured:
            row += [f"{ms:.4g}" for ms in (measured[name], *dataclasses.astuple(parts[name]))]
            row.append(f"{busy[name]:.0%}")
        rows.append(row + ["-"] * (9 - len(row)))
    head = ["unit", "images", "predicted ms", "measured ms", "copy in", "network", "copy out", "host", "utilization"]
    return table(head, rows)


def adjusted_text(plan: Plan, adjusted: AdjustedRun) -> str:
    """How a batch divided by `plan` was divided again."""
    factors = ", ".join(f"{name} {factor:.2f}" for name, factor in adjusted.factors.items())
    text = f"while all units run, they need this multiple of the time in their tables: {factors}\n"
    before = f"{image_counts(plan)} images, {adjusted.first.measured_ms:.4g} ms"
    if adjusted.kept:
        return f"{text}no other division is faster: {before}"
    return f"{text}divided again: {image_counts(adjusted.plan)} images (before: {before})"


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
