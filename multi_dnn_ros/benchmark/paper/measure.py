"""All conditions of a set in one run: blocks in which each condition runs once, in random order.

The processes of all conditions of a set are prepared at the same time, and idle while others run. Results are written
after each block, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.benchmark.paper.conditions import Condition, precision_of
from multi_dnn_ros.benchmark.paper.evaluated import files_of
from multi_dnn_ros.benchmark.paper.prepare import Work
from multi_dnn_ros.benchmark.paper.process_group import RUN_IN_S, WAKE_S, ProcessGroup, ProcessGroupError
from multi_dnn_ros.benchmark.paper.sets import DnnSet
from multi_dnn_ros.benchmark.paper.statistics import run_figures, summarize
from multi_dnn_ros.benchmark.paper.time_bound import Costs, Rates, lower_bounds, measure_costs, measure_rates
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.pipeline.choices import default_workers

_PREPARE_LIMIT_S = 900.0
_WARM_UP_S = 0.3
#: For the estimate: CPU seconds of a new process to import and build, and to move a DNN to the device.
_IMPORT_S, _READY_S = 15.0, 1.5

#: Compiling executions: duration relative to torch.compile without freezing.
_COMPILE_FACTORS = {"compile": 1.0, "inductor": 3.0}

ReportProgress = Callable[[str], None]
Save = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Plan:
    """What is measured. seconds: per run; the run with the 1 kHz thread adds half of that.

    repeats: number of blocks. jobs: per DNN, if its condition leaves that open. sms, tf32, artifacts: see Work.
    """

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
        """Settings that must be equal for runs to be comparable."""
        return {
            "device": str(self.device),
            "sms": self.sms,
            "tf32": self.tf32,
            "jobs": self.jobs,
            "seconds": self.seconds,
            "seed": self.seed,
            "artifacts": None if self.artifacts is None else str(self.artifacts),
            "conditions": [condition.name for condition in self.conditions],
        }

    def order(self, dnns: DnnSet, block: int) -> list[Condition]:
        """The conditions in random order; the same for the same seed."""
        order = list(self.conditions)
        random.Random(f"{self.seed} {dnns.name} {block}").shuffle(order)
        return order

    def works(self, dnns: DnnSet, condition: Condition) -> list[Work]:
        """One per process of the condition."""
        groups = [(network,) for network in dnns.networks] if condition.layout == "processes" else [dnns.networks]
        return [
            Work(
                condition,
                tuple(networks),
                str(self.device),
                self.sms,
                self.tf32,
                self.jobs,
                self.artifacts,
                self.seed,
                self._cpu_threads(dnns, condition),
            )
            for networks in groups
        ]

    def _cpu_threads(self, dnns: DnnSet, condition: Condition) -> int:
        """The cores divided by the number of concurrent computations; with a GPU one thread suffices."""
        if self.device.type != "cpu":
            return 1
        concurrent = {"in_turn": 1, "engine": default_workers(self.device, len(dnns.networks))}
        return max(1, cpu_count() // concurrent.get(condition.layout, len(dnns.networks)))


def estimate_s(plan: Plan) -> float:
    """Estimated duration in seconds."""
    total = 15.0
    run_s = 1.5 * plan.seconds + 4 * RUN_IN_S + 2 * WAKE_S
    for dnns in plan.sets:
        processes = sum(len(plan.works(dnns, condition)) for condition in plan.conditions)
        total += processes * _IMPORT_S / cpu_count()
        for condition in plan.conditions:
            compiled = sum(network.compile_s for network in dnns.kinds) * _COMPILE_FACTORS.get(condition.execution, 0.0)
            compiled *= 2 if condition.batched else 1  # batch sizes 1 and all
            concurrent = min(len(plan.works(dnns, condition)), cpu_count())
            ready_s = _READY_S * (1 + len(dnns.networks) / concurrent)
            total += compiled + ready_s + _WARM_UP_S + plan.repeats * run_s
    return total


def measure(plan: Plan, earlier: Mapping[str, Any], save: Save, progress: ReportProgress) -> dict[str, Any]:
    """Returns settings, rates and sets; calls `save` with the intermediate result after each block.

    earlier: content of an interrupted run with the same settings, or empty. A condition that fails is left out of later
    blocks and its error recorded.
    """
    content: dict[str, Any] = {
        "settings": plan.settings(),
        "rates": {},
        **earlier,
        "sets": dict(earlier.get("sets", {})),
    }
    done = {dnns.name: blocks_done(content["sets"].get(dnns.name, {})) for dnns in plan.sets}
    left = [dnns for dnns in plan.sets if done[dnns.name] < plan.repeats]
    if not left:
        progress("all blocks have already been measured")
        return content
    progress("measuring the device's bandwidth and operation rates")
    networks = tuple(dict.fromkeys(network for dnns in left for network in dnns.networks))
    alignments = tuple(dict.fromkeys(condition.decomposed for condition in plan.conditions))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        rates = pool.submit(measure_rates, str(plan.device), plan.sms, plan.tf32, cpu_count()).result()
        costs = pool.submit(measure_costs, networks, alignments, plan.artifacts).result()
    content["rates"] = asdict(rates)
    for dnns in left:
        _measure_set(plan, dnns, done[dnns.name], content, (rates, costs), save, progress)
    return content


def blocks_done(set_results: Mapping[str, Any]) -> int:
    """Number of a set's blocks that all conditions without an error have completed."""
    counts = [len(entry["runs"]) for entry in set_results.get("conditions", {}).values() if not entry.get("error")]
    return min(counts, default=0)


def _measure_set(
    plan: Plan,
    dnns: DnnSet,
    done: int,
    content: dict[str, Any],
    bounds: tuple[Rates, Costs],
    save: Save,
    progress: ReportProgress,
) -> None:
    earlier = content["sets"].get(dnns.name, {})
    before = earlier.get("conditions", {})
    networks = files_of(dnns.kinds, plan.artifacts)
    if done and earlier.get("networks", networks) != networks:
        raise CommandError(f"{dnns.name}: the files in {plan.artifacts} differ from those of the run to continue")
    entries: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        # Conditions that failed in the resumed run stay out: their blocks would differ from the others'.
        excluded = {name for name, entry in before.items() if done and entry.get("error")}
        included = [condition for condition in plan.conditions if condition.name not in excluded]
        progress(f"{dnns.name}: {dnns.describe()}; starting the processes of {len(included)} conditions")
        groups = {
            condition.name: stack.enter_context(ProcessGroup(condition.name, plan.works(dnns, condition)))
            for condition in included
        }
        for condition in plan.conditions:
            if condition.name in excluded:
                entries[condition.name] = dict(before[condition.name])
                continue
            entry = entries[condition.name] = {
                **_describe(plan, condition),
                "floor": lower_bounds(dnns, condition, bounds[1], bounds[0], plan.device),
                "runs": list(before.get(condition.name, {}).get("runs", ()))[:done],
            }
            entry.update(_prepare(plan, condition, groups, progress))
        set_results = {
            "dnns": [network.builder for network in dnns.networks], "networks": networks, "conditions": entries
        }  # fmt: skip
        for block in range(done, plan.repeats):
            runs = _block(plan, plan.order(dnns, block), groups, entries, progress)
            for name, run in runs.items():
                entries[name]["runs"].append({"block": block, **run})
            set_results["summary"] = summarize(entries)
            content["sets"][dnns.name] = set_results
            save(content)
            times = ", ".join(f"{name} {run['mean_ms']:.2f}" for name, run in runs.items())
            progress(f"{dnns.name}: block {block + 1} of {plan.repeats}, ms: {times}")
            if not runs:
                raise ProcessGroupError(
                    f"every condition of {dnns.name} failed: {next(iter(entries.values()))['error']}"
                )
        for group in groups.values():  # stop all before any is closed, so that they end in parallel
            group.stop()


def _describe(plan: Plan, condition: Condition) -> dict[str, Any]:
    return {
        "label": condition.label,
        "text": condition.text,
        "precision": precision_of(condition, plan.device),
        "jobs": condition.jobs or plan.jobs,
        "decomposed": condition.decomposed,
    }


def _prepare(
    plan: Plan, condition: Condition, groups: dict[str, ProcessGroup], progress: ReportProgress
) -> dict[str, Any]:
    """Memory, time and warnings of preparing a condition; if that fails, its error, and its group is removed."""
    group = groups[condition.name]
    begin, before = time.monotonic(), _used_bytes(plan.device, group)
    try:
        notes = group.prepare(_PREPARE_LIMIT_S, first_alone=condition.execution == "compile")
        group.run(_WARM_UP_S)
    except ProcessGroupError as error:
        groups.pop(condition.name).close()
        progress(f"{condition.name}: left out: {error}")
        return {"error": str(error)}
    taken = _used_bytes(plan.device, group) - (before if plan.device.type == "cuda" else 0)
    progress(f"{condition.name}: ready after {time.monotonic() - begin:.1f} s, {taken / 2**20:.0f} MiB")
    for note in notes:
        progress(f"{condition.name}: {note}")
    return {"memory_bytes": taken, "prepare_s": time.monotonic() - begin, "notes": list(notes)}


def _used_bytes(device: torch.device, group: ProcessGroup) -> int:
    """On a GPU the memory used by all processes; otherwise the memory exclusive to the group's processes."""
    if device.type != "cuda":
        return group.resident_bytes()
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _block(
    plan: Plan,
    order: Sequence[Condition],
    groups: dict[str, ProcessGroup],
    entries: Mapping[str, dict[str, Any]],
    progress: ReportProgress,
) -> dict[str, dict[str, Any]]:
    """Run each condition once; one that fails is left out from then on, keeping its earlier runs."""
    runs = {}
    for condition in order:
        group = groups.get(condition.name)
        if group is None:
            continue
        try:
            reports = group.run(plan.seconds)
            ticker_reports = group.run(plan.seconds / 2, ticker=True)
        except ProcessGroupError as error:
            entries[condition.name]["error"] = str(error)
            progress(f"{condition.name}: left out from here on: {error}")
            groups.pop(condition.name).close()
            continue
        runs[condition.name] = run_figures(reports, ticker_reports, plan.seconds)
    return runs
