"""All conditions of a set in one run: blocks in which each condition runs once, in random order.

The processes of all conditions of a set are prepared before the first block, and idle while others run.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from multi_dnn_ros.benchmark.paper.prepare import Work
from multi_dnn_ros.benchmark.paper.process_group import ProcessGroup, ProcessGroupError
from multi_dnn_ros.benchmark.paper.sets import BASELINE, Condition, DnnSet
from multi_dnn_ros.common.reporting import cpu_count, distribution
from multi_dnn_ros.pipeline.choices import default_workers

_PREPARE_LIMIT_S = 900.0
_WARM_UP_S = 0.3


@dataclass(frozen=True)
class Plan:
    """What is measured. seconds: per run. repeats: number of blocks. jobs: per DNN. sms, tf32: see Work."""

    sets: Mapping[str, DnnSet]
    conditions: Sequence[Condition]
    device: torch.device
    repeats: int = 5
    seconds: float = 2.0
    seed: int = 0
    sms: int | None = None
    tf32: bool = True
    jobs: int = 8

    def works(self, dnns: DnnSet, condition: Condition) -> list[Work]:
        """One per process of the condition."""
        groups = [(network,) for network in dnns] if condition.layout == "processes" else [dnns]
        concurrent = default_workers(self.device, len(dnns)) if condition.layout == "engine" else len(dnns)
        threads = max(1, cpu_count() // concurrent) if self.device.type == "cpu" else 1
        return [
            Work(condition, networks, str(self.device), self.sms, self.tf32, self.jobs, self.seed, threads)
            for networks in groups
        ]


def measure(
    plan: Plan, save: Callable[[dict[str, Any]], None], progress: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The figures of each set. save: called with the figures so far after each block.

    A condition that fails is left out of later blocks, and its error recorded. Raises ProcessGroupError if all fail.
    """
    sets: dict[str, dict[str, Any]] = {}
    for name, dnns in plan.sets.items():
        conditions: dict[str, dict[str, Any]] = {}
        sets[name] = {"dnns": [network.builder for network in dnns], "conditions": conditions}
        groups: dict[str, ProcessGroup] = {}
        with contextlib.ExitStack() as stack:
            for condition in plan.conditions:
                progress(f"{name}: preparing {condition.name} ({len(dnns)} DNNs)")
                precision = condition.precision_on(plan.device)
                conditions[condition.name] = {"text": condition.text, "precision": precision, "runs": []}
                before = _gpu_bytes(plan.device)
                try:
                    group = stack.enter_context(ProcessGroup(condition.name, plan.works(dnns, condition)))
                    groups[condition.name] = group
                    notes = group.prepare(_PREPARE_LIMIT_S, first_alone=condition.execution == "compile")
                    group.run(_WARM_UP_S)
                except ProcessGroupError as error:
                    _leave_out(condition.name, groups, conditions, error, progress)
                else:
                    conditions[condition.name].update(notes=notes, memory_bytes=_gpu_bytes(plan.device) - before)
            order = random.Random(f"{plan.seed} {name}")
            for block in range(plan.repeats):
                for each in order.sample(list(groups), len(groups)):
                    try:
                        figures = _figures(groups[each].run(plan.seconds))
                    except ProcessGroupError as error:
                        _leave_out(each, groups, conditions, error, progress)
                    else:
                        conditions[each]["runs"].append({"block": block, **figures})
                if not groups:
                    raise ProcessGroupError(f"every condition of {name} failed, see above")
                sets[name]["summary"] = summarize(conditions)
                save(sets)
                times = (f"{each} {it['mean_ms']:.2f}" for each, it in sets[name]["summary"].items())
                progress(f"{name}: block {block + 1} of {plan.repeats}, ms: {', '.join(times)}")
    return sets


def _leave_out(
    name: str, groups: dict[str, ProcessGroup], conditions: dict[str, dict[str, Any]], error: ProcessGroupError,
    progress: Callable[[str], None],
) -> None:  # fmt: skip
    conditions[name]["error"] = str(error)
    progress(f"{name} is left out: {error}")
    if name in groups:
        groups.pop(name).close()


def _gpu_bytes(device: torch.device) -> int:
    """Memory in use on a GPU, by all processes; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _figures(dnns: Sequence[tuple[str, list[float]]]) -> dict[str, Any]:
    """ms: time of one inference while all run, by network, over all its DNNs. mean_ms: the DNNs' medians, averaged.

    inferences_per_s: of all DNNs, each of which starts the next inference when the last one ends.
    """
    names = dict.fromkeys(name for name, _ in dnns)
    return {
        "ms": {name: distribution([ms for other, times in dnns if other == name for ms in times]) for name in names},
        "mean_ms": statistics.fmean(statistics.median(times) for _, times in dnns),
        "inferences_per_s": sum(1e3 / statistics.fmean(times) for _, times in dnns),
    }


def summarize(conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each condition with runs: medians over its runs, and `of_baseline`, its time relative to that of the baseline
    in the same block, median over the blocks; None without a common block.
    """
    baseline = {run["block"]: run["mean_ms"] for run in conditions.get(BASELINE, {}).get("runs", ())}
    found = {}
    for name, condition in conditions.items():
        runs = condition["runs"]
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
