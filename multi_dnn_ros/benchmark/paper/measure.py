"""The processes of the conditions, and all conditions of a set measured in one run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import psutil
import torch

from multi_dnn_ros.benchmark.paper.dnns import Work, make_loop
from multi_dnn_ros.benchmark.paper.loops import Loop, Window
from multi_dnn_ros.benchmark.paper.sets import BASELINE, Condition, DnnSet
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.processes import end_with_parent
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.serving.choices import default_workers
from multi_dnn_ros.serving.process_settings import freeze_heap, short_switch_interval

_PREPARE_LIMIT_S, _ANSWER_LIMIT_S = 900.0, 120.0
#: Time between the request to run and the window, so that every process has received it and is warm.
_RUN_IN_S = 0.2
#: Uncounted runs: after preparing, and before each run, which restores caches and clock rates of idle processes.
_WARM_UP_S, _WAKE_S = 0.3, 0.1


class ProcessGroupError(CommandError):
    """A process of a condition failed or stopped responding; the message says which and how."""


class ProcessGroup:
    """One process per entry of `works`; a context manager that ends them. name: the condition's, for messages."""

    def __init__(self, name: str, works: Sequence[Work]) -> None:
        self._name = name
        self._works = works
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self._pools = [futures.ProcessPoolExecutor(1, context, end_with_parent) for _ in works]
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # new processes ignore Ctrl-C: this one ends them
        calls = [pool.submit(os.getpid) for pool in self._pools]
        signal.signal(signal.SIGINT, handler)
        self.pids = self._results(_ANSWER_LIMIT_S, calls)

    def prepare(self) -> None:
        """Prepare all DNNs on the device, and warm up."""
        self._call(_PREPARE_LIMIT_S, _prepare, ((work,) for work in self._works))
        self.run(_WARM_UP_S)

    def run(self, seconds: float) -> list[tuple[str, list[float]]]:
        """Run all DNNs of all processes concurrently; returns builder and times in ms of each DNN's inferences."""
        for length_s in (_WAKE_S, seconds):
            window = Window.ahead(_RUN_IN_S, length_s)
            reports = self._call(length_s + _ANSWER_LIMIT_S, _run, ((window,) for _ in self._works))
        return [dnn for report in reports for dnn in report]

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes, which have nothing to keep."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()

    def _call(self, timeout_s: float, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a function in each process. Raises ProcessGroupError."""
        calls = [pool.submit(function, *each) for pool, each in zip(self._pools, arguments, strict=True)]
        return self._results(timeout_s, calls)

    def _results(self, timeout_s: float, calls: Sequence[futures.Future[Any]]) -> list[Any]:
        futures.wait(calls, timeout_s)
        try:
            return [call.result(0.0) for call in calls]
        except futures.TimeoutError:
            problem = f"a process did not answer in {timeout_s:g} s"
        except BrokenProcessPool:
            problem = "a process has ended by itself"
        except Exception as error:
            problem = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        raise ProcessGroupError(f"condition {self._name}: {problem}")


def measure(
    sets: Mapping[str, DnnSet], conditions: Sequence[Condition], base: Work, seconds: float, repeats: int,
    save: Callable[[dict[str, Any]], None], progress: Callable[[str], None],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The figures of each set: blocks in which each condition runs once, for `seconds`, in random order.

    The processes of all conditions of a set are prepared before the first block, and idle while others run. base: the
    settings of all processes. save: called with the figures so far after each block. Raises ProcessGroupError.
    """
    found: dict[str, dict[str, Any]] = {}
    device = torch.device(base.device)
    for name, dnns in sets.items():
        runs: dict[str, dict[str, Any]] = {}
        found[name] = {"dnns": [network.builder for network in dnns], "conditions": runs}
        groups: dict[str, ProcessGroup] = {}
        with contextlib.ExitStack() as stack:
            for it in conditions:
                progress(f"{name}: preparing {it.name} ({len(dnns)} DNNs)")
                before = _gpu_bytes(device)
                groups[it.name] = stack.enter_context(ProcessGroup(it.name, _works(dnns, it, base)))
                groups[it.name].prepare()
                runs[it.name] = {"text": it.text, "precision": it.precision_on(device),
                                 "memory_bytes": _gpu_bytes(device) - before, "runs": []}  # fmt: skip
            order = random.Random(f"{base.seed} {name}")
            for block in range(repeats):
                for each in order.sample(list(groups), len(groups)):
                    runs[each]["runs"].append({"block": block, **_figures(groups[each].run(seconds))})
                found[name]["summary"] = summarize(runs)
                save(found)
                times = (f"{each} {it['mean_ms']:.2f}" for each, it in found[name]["summary"].items())
                progress(f"{name}: block {block + 1} of {repeats}, ms: {', '.join(times)}")
    return found


def _works(dnns: DnnSet, condition: Condition, base: Work) -> list[Work]:
    """One per process of the condition."""
    groups = [(network,) for network in dnns] if condition.layout == "processes" else [dnns]
    device = torch.device(base.device)
    concurrent = default_workers(device, len(dnns)) if condition.layout == "engine" else len(dnns)
    threads = max(1, cpu_count() // concurrent) if device.type == "cpu" else 1
    return [replace(base, condition=condition, networks=networks, cpu_threads=threads) for networks in groups]


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
    """For each condition: medians over its runs, and `of_baseline`, its time relative to that of the baseline in the
    same block, median over the blocks; None without the baseline.
    """
    baseline = [run["mean_ms"] for run in conditions.get(BASELINE, {}).get("runs", ())]
    found = {}
    for name, condition in conditions.items():
        runs = condition["runs"]
        ratios = [run["mean_ms"] / ms for run, ms in zip(runs, baseline, strict=False)]
        found[name] = {
            "ms": {
                network: {key: statistics.median(run["ms"][network][key] for run in runs) for key in ("p50", "p99")}
                for network in runs[0]["ms"]
            },
            **{key: statistics.median(run[key] for run in runs) for key in ("mean_ms", "inferences_per_s")},
            "of_baseline": statistics.median(ratios) if ratios else None,
            "memory_bytes": condition["memory_bytes"],
        }
    return found


# -- in the processes, each of which has one work

_prepared: list[tuple[Work, Loop]] = []


def _prepare(work: Work) -> None:
    _prepared.append((work, make_loop(work)))


def _run(window: Window) -> list[tuple[str, list[float]]]:
    ((work, loop),) = _prepared
    # Both as in the node. The switch interval is for the engine only; other conditions keep Python's default.
    freeze_heap()
    with short_switch_interval() if work.condition.layout == "engine" else contextlib.nullcontext():
        tallies = loop(window)
    names = [network.builder for network in work.networks]
    return [(name, [ns / 1e6 for ns in tally.latencies_ns]) for name, tally in zip(names, tallies, strict=True)]
