"""The processes of the conditions, and all conditions of a set measured in one run."""

from __future__ import annotations

import multiprocessing
import random
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from multi_dnn_ros.benchmark.paper.dnns import Work, make_loop
from multi_dnn_ros.benchmark.paper.loops import Window
from multi_dnn_ros.benchmark.paper.sets import BASELINE, Condition, DnnSet
from multi_dnn_ros.common.errors import CommandError, summarize_error
from multi_dnn_ros.common.processes import end_with_parent
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.serving.choices import default_workers
from multi_dnn_ros.serving.process_settings import freeze_heap, short_switch_interval

#: A forked process cannot use CUDA.
_CONTEXT = multiprocessing.get_context("spawn")
_PREPARE_LIMIT_S, _ANSWER_LIMIT_S = 900.0, 120.0
#: Time between the request to run and the window, so that every process has received it and is warm.
_RUN_IN_S = 0.2
#: Uncounted runs: after preparing, and before each run, which restores caches and clock rates of idle processes.
_WARM_UP_S, _WAKE_S = 0.3, 0.1


#: Runs all DNNs of a condition at the same time for some seconds: builder and times in ms of each one's inferences.
Run = Callable[[float], list[tuple[str, list[float]]]]


def prepare(name: str, works: Sequence[Work], stack: ExitStack) -> Run:
    """Start a process for each entry of `works` and prepare its DNNs. name: of the condition. stack: ends them.

    Raises CommandError if a process fails or does not answer; so does the function that is returned.
    """
    connections = [start_process(stack, _serve, work) for work in works]
    for connection in connections:
        receive(connection, _PREPARE_LIMIT_S, f"condition {name}")

    def run(seconds: float) -> list[tuple[str, list[float]]]:
        reports = []
        for length_s in (_WAKE_S, seconds):
            window = Window.ahead(_RUN_IN_S, length_s)
            for connection in connections:
                connection.send(window)
            reports = [receive(each, length_s + _ANSWER_LIMIT_S, f"condition {name}") for each in connections]
        return [dnn for report in reports for dnn in report]

    run(_WARM_UP_S)
    return run


def measure(
    sets: Mapping[str, DnnSet], conditions: Sequence[Condition], base: Work, seconds: float, repeats: int,
    save: Callable[[dict[str, Any]], None], progress: Callable[[str], None],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The figures of each set: blocks in which each condition runs once, for `seconds`, in random order.

    The processes of all conditions of a set are prepared before the first block, and idle while others run. base: the
    settings of all processes. save: called with the figures so far after each block. Raises CommandError.
    """
    found: dict[str, dict[str, Any]] = {}
    device = torch.device(base.device)
    for name, dnns in sets.items():
        runs: dict[str, dict[str, Any]] = {}
        found[name] = {"dnns": [network.builder for network in dnns], "conditions": runs}
        groups: dict[str, Run] = {}
        with ExitStack() as stack:
            for it in conditions:
                progress(f"{name}: preparing {it.name} ({len(dnns)} DNNs)")
                before = _gpu_bytes(device)
                groups[it.name] = prepare(it.name, _works(dnns, it, base), stack)
                runs[it.name] = {"text": it.text, "precision": it.precision_on(device),
                                 "memory_bytes": _gpu_bytes(device) - before, "runs": []}  # fmt: skip
            order = random.Random(f"{base.seed} {name}")
            for block in range(repeats):
                for each in order.sample(list(groups), len(groups)):
                    runs[each]["runs"].append({"block": block, **_figures(groups[each](seconds))})
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


def _serve(work: Work, connection: Connection) -> None:
    """What a process does: says when its DNNs are prepared, then answers each window with a report."""
    loop, names = make_loop(work), [network.builder for network in work.networks]
    connection.send("ready")
    while True:
        window: Window = connection.recv()
        # Both as in the node. The switch interval is for the engine only; other conditions keep Python's default.
        freeze_heap()
        with short_switch_interval() if work.condition.layout == "engine" else nullcontext():
            tallies = loop(window)
        times = [[ns / 1e6 for ns in tally.latencies_ns] for tally in tallies]
        connection.send(list(zip(names, times, strict=True)))


def start_process(stack: ExitStack, target: Callable[..., None], *arguments: Any) -> Connection:
    """Start a process that calls `target` with `arguments` and its end of the connection. stack: kills it."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_run, args=(target, *arguments, theirs), daemon=True)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # new processes ignore Ctrl-C: this one ends them
    process.start()
    signal.signal(signal.SIGINT, handler)
    theirs.close()
    stack.callback(process.join)
    stack.callback(process.kill)
    return ours


def receive(connection: Connection, timeout_s: float, name: str) -> Any:
    """The next answer of a process. Raises CommandError if it has failed or ended, or does not answer."""
    try:
        if not connection.poll(timeout_s):
            raise CommandError(f"{name} did not answer in {timeout_s:g} s")
        answer = connection.recv()
    except (EOFError, OSError):
        raise CommandError(f"{name} has ended by itself") from None
    if isinstance(answer, CommandError):
        raise CommandError(f"{name}: {answer}")
    return answer


def _run(target: Callable[..., None], *arguments: Any) -> None:
    end_with_parent()
    try:
        target(*arguments)
    except Exception as error:
        arguments[-1].send(CommandError(f"{type(error).__name__}: {summarize_error(error)}"))
        raise
