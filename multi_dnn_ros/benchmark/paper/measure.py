"""All conditions of a set in one run: blocks in which each condition runs once, in random order.

The processes of all conditions of a set are prepared before the first block, and idle while others run.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.benchmark.paper.conditions import BASELINE, Condition, precision_of
from multi_dnn_ros.benchmark.paper.networks import files_of
from multi_dnn_ros.benchmark.paper.prepare import Work
from multi_dnn_ros.benchmark.paper.process_group import ProcessGroup, ProcessGroupError, Report
from multi_dnn_ros.benchmark.paper.sets import DnnSet
from multi_dnn_ros.common.reporting import cpu_count, distribution
from multi_dnn_ros.pipeline.choices import default_workers

_PREPARE_LIMIT_S = 900.0
_WARM_UP_S = 0.3


@dataclass(frozen=True)
class Plan:
    """What is measured. seconds: per run. repeats: number of blocks. jobs: per DNN. sms, tf32, artifacts: see Work."""

    sets: tuple[DnnSet, ...]
    conditions: tuple[Condition, ...]
    device: torch.device
    repeats: int = 5
    seconds: float = 2.0
    seed: int = 0
    sms: int | None = None
    tf32: bool = True
    jobs: int = 8
    artifacts: Path | None = None

    def settings(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "device": str(self.device),
            "sms": self.sms,
            "tf32": self.tf32,
            "jobs": self.jobs,
            "repeats": self.repeats,
            "seconds": self.seconds,
            "seed": self.seed,
            "artifacts": None if self.artifacts is None else str(self.artifacts),
        }

    def works(self, dnns: DnnSet, condition: Condition) -> list[Work]:
        """One per process of the condition."""
        groups = [(network,) for network in dnns.networks] if condition.layout == "processes" else [dnns.networks]
        concurrent = default_workers(self.device, len(dnns.networks)) if condition.layout == "engine" else None
        threads = max(1, cpu_count() // (concurrent or len(dnns.networks))) if self.device.type == "cpu" else 1
        return [
            Work(condition, tuple(networks), str(self.device), self.sms, self.tf32, self.jobs, self.artifacts,
                 self.seed, threads)
            for networks in groups
        ]  # fmt: skip


def measure(
    plan: Plan, save: Callable[[dict[str, Any]], None], progress: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The figures of each set. save: called with the figures so far after each block.

    A condition that fails is left out of later blocks, and its error recorded. Raises ProcessGroupError if all fail.
    """
    sets: dict[str, dict[str, Any]] = {}
    for dnns in plan.sets:
        conditions: dict[str, dict[str, Any]] = {}
        sets[dnns.name] = {
            "dnns": [network.builder for network in dnns.networks],
            "networks": files_of(dnns.kinds, plan.artifacts),
            "conditions": conditions,
        }
        progress(f"{dnns.name}: {dnns.describe()}; starting the processes of {len(plan.conditions)} conditions")
        with contextlib.ExitStack() as stack:
            groups = {
                it.name: stack.enter_context(ProcessGroup(it.name, plan.works(dnns, it))) for it in plan.conditions
            }
            for condition in plan.conditions:
                conditions[condition.name] = _prepare(plan, condition, groups, progress)
            order = random.Random(f"{plan.seed} {dnns.name}")
            for block in range(plan.repeats):
                for name in order.sample(list(groups), len(groups)):
                    try:
                        reports = groups[name].run(plan.seconds)
                    except ProcessGroupError as error:
                        conditions[name]["error"] = str(error)
                        groups.pop(name).close()
                        continue
                    conditions[name]["runs"].append({"block": block, **_figures(reports, plan.seconds)})
                if not groups:
                    raise ProcessGroupError(f"every condition of {dnns.name} failed: {conditions[name]['error']}")
                sets[dnns.name]["summary"] = summarize(conditions)
                save(sets)
                times = (f"{name} {it['mean_ms']:.2f}" for name, it in sets[dnns.name]["summary"].items())
                progress(f"{dnns.name}: block {block + 1} of {plan.repeats}, ms: {', '.join(times)}")
            for group in groups.values():  # stop all before any is closed, so that they end in parallel
                group.stop()
    return sets


def _prepare(
    plan: Plan, condition: Condition, groups: dict[str, ProcessGroup], progress: Callable[[str], None]
) -> dict[str, Any]:
    """The entry of a condition; if preparing fails, with its error, and its group is removed."""
    entry: dict[str, Any] = {"text": condition.text, "precision": precision_of(condition, plan.device), "runs": []}
    group = groups[condition.name]
    before = _used_bytes(plan.device, group)
    try:
        entry["notes"] = list(group.prepare(_PREPARE_LIMIT_S, first_alone=condition.execution == "compile"))
        group.run(_WARM_UP_S)
    except ProcessGroupError as error:
        groups.pop(condition.name).close()
        progress(f"{condition.name} is left out: {error}")
        return {**entry, "error": str(error)}
    entry["memory_bytes"] = _used_bytes(plan.device, group) - (before if plan.device.type == "cuda" else 0)
    for note in entry["notes"]:
        progress(f"{condition.name}: {note}")
    return entry


def _used_bytes(device: torch.device, group: ProcessGroup) -> int:
    """On a GPU the memory used by all processes; otherwise the memory exclusive to the group's processes."""
    if device.type != "cuda":
        return group.resident_bytes()
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _figures(reports: list[Report], seconds: float) -> dict[str, Any]:
    """ms: time of one inference while all run, by network, over all its DNNs. mean_ms: the DNNs' medians, averaged."""
    dnns = [dnn for report in reports for dnn in report.dnns]
    names = dict.fromkeys(dnn.network for dnn in dnns)
    return {
        "ms": {
            name: distribution([ms for dnn in dnns if dnn.network == name for ms in dnn.latencies_ms]) for name in names
        },
        "mean_ms": statistics.fmean(statistics.median(dnn.latencies_ms) for dnn in dnns),
        "inferences_per_s": sum(dnn.completed for dnn in dnns) / seconds,
    }


def summarize(conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each condition with runs: medians over its runs, and `of_baseline`, its time relative to that of the baseline
    in the same block, median over the blocks; None without a common block.
    """
    baseline = {run["block"]: run["mean_ms"] for run in conditions.get(BASELINE, {}).get("runs", ())}
    found = {}
    for name, condition in conditions.items():
        runs = condition.get("runs")
        if not runs:
            continue
        ratios = [run["mean_ms"] / baseline[run["block"]] for run in runs if run["block"] in baseline]
        found[name] = {
            "ms": {
                network: {key: statistics.median(run["ms"][network][key] for run in runs) for key in ("p50", "p99")}
                for network in runs[0]["ms"]
            },
            "mean_ms": statistics.median(run["mean_ms"] for run in runs),
            "inferences_per_s": statistics.median(run["inferences_per_s"] for run in runs),
            "of_baseline": statistics.median(ratios) if ratios else None,
            "memory_bytes": condition.get("memory_bytes"),
        }
    return found
