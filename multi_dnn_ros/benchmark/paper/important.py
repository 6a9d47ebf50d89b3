"""One important DNN at a camera's rate among heavy DNNs that are never idle: its latency, and the others' loss."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS, Condition, precision_of
from multi_dnn_ros.benchmark.paper.deadlines import Bench, DeadlinePlan
from multi_dnn_ros.benchmark.paper.sets import DnnSet, Network
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import distribution, table, with_change
from multi_dnn_ros.common.thread_switching import short_switch_interval
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame, Result
from multi_dnn_ros.pipeline.choices import default_workers

#: Targets: p99 of the important DNN relative to its p99 alone; throughput of the others relative to fifo.
MAX_P99_RATIO, MIN_THROUGHPUT = 1.5, 0.95
_PRIORITY = 10
_CAMERA = "front"
_IMAGE = np.zeros((4, 4, 3), np.uint8)
_SETTLE_S = 0.5
_DRAIN_S = 60.0


@dataclass(frozen=True)
class Case:
    """One way to run. policy, bound: the engine's policy and max_launched. alone: the other DNNs get no frames."""

    name: str
    policy: str = "priority"
    bound: int | None = None
    alone: bool = False


@dataclass(frozen=True)
class ImportantPlan:
    """important: measured one at a time. background: networks of the other DNNs, used round-robin.

    condition: how the engine runs them. rate_hz: of the important DNN's camera. seconds: per run. bounds: additional
    values of the engine's max_launched to measure.
    """

    important: tuple[Network, ...]
    background: tuple[Network, ...]
    device: torch.device
    sms: int | None = None
    condition: Condition = CONDITIONS["ours"]
    jobs: int = 8
    others: int = 6
    rate_hz: float = 30.0
    repeats: int = 3
    seconds: float = 5.0
    seed: int = 0
    bounds: tuple[int, ...] = ()


def cases(plan: ImportantPlan) -> tuple[Case, ...]:
    """The baselines, policy priority with the engine's defaults, and on a GPU each bound."""
    found = [Case("alone", alone=True), Case("fifo", "fifo"), Case("priority")]
    if plan.device.type == "cuda":
        found += [Case(f"priority, at most {bound} launched", bound=bound) for bound in plan.bounds]
    return tuple(found)


def measure_important(
    plan: ImportantPlan,
    progress: Callable[[str], None] = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> dict[str, Any]:
    """Each important DNN among the same others, every case in random order, repeated. keep: called with the figures of
    those important DNNs of which every case has run, after each run from the first such DNN on.

    Each of the others always has a waiting frame. alone: the same engine with the others idle. Under fifo all
    priorities are equal.
    """
    others = tuple(islice(cycle(plan.background), plan.others))
    networks = sorted((*plan.important, *others), key=lambda network: network.builder)  # group equal networks
    bench = Bench(
        DeadlinePlan(
            DnnSet("important", tuple(networks)),
            plan.device,
            plan.sms,
            plan.condition,
            plan.jobs,
            seed=plan.seed,
        )
    )
    bench.grow(len(networks))
    of_kind: dict[Network, list[DnnTask]] = {network: [] for network in networks}
    for network, task in zip(networks, bench.tasks, strict=True):
        of_kind[network].append(task)
    important = {network.builder: of_kind[network].pop() for network in plan.important}
    background = [task for tasks in of_kind.values() for task in tasks]
    progress(f"{len(networks)} DNNs are ready: {', '.join(network.builder for network in networks)}")
    wanted = cases(plan)
    order = [(name, case) for _ in range(plan.repeats) for name in important for case in wanted]
    random.Random(plan.seed).shuffle(order)
    found: dict[tuple[str, str], list[tuple[list[float], float]]] = {}
    with short_switch_interval():  # as when serving
        for number, (name, case) in enumerate(order, start=1):
            run = _run(important[name], background, plan, case)
            found.setdefault((name, case.name), []).append(run)
            tail = distribution(run[0])["p99"]
            progress(f"run {number} of {len(order)}: {name}, {case.name}: p99 {tail:.2f} ms, others {run[1]:.0f}/s")
            if (figures := _figures(plan, others, found))["rows"]:
                keep(figures)
    return _figures(plan, others, found)


def _figures(
    plan: ImportantPlan,
    others: Sequence[Network],
    found: Mapping[tuple[str, str], Sequence[tuple[list[float], float]]],
) -> dict[str, Any]:
    """found: latencies and the others' frames per second of each run, by important DNN and case."""
    wanted = cases(plan)
    complete = [
        network.builder for network in plan.important if all((network.builder, case.name) in found for case in wanted)
    ]
    return {
        "settings": {
            "background": [network.builder for network in others],
            "device": str(plan.device),
            "sms": plan.sms,
            "condition": plan.condition.name,
            "precision": precision_of(plan.condition, plan.device),
            "jobs": plan.jobs,
            "rate_hz": plan.rate_hz,
            "seconds": plan.seconds,
            "repeats": plan.repeats,
            "seed": plan.seed,
        },
        "aims": {"p99_ratio": MAX_P99_RATIO, "throughput": MIN_THROUGHPUT},
        "rows": [_row(name, [(case, found[name, case.name]) for case in wanted], _frames(plan)) for name in complete],
    }


def _frames(plan: ImportantPlan) -> int:
    """Number of frames of the important DNN in a run."""
    return max(2, round(plan.seconds * plan.rate_hz))


def _row(name: str, runs: Sequence[tuple[Case, Sequence[tuple[list[float], float]]]], frames: int) -> dict[str, Any]:
    """Latencies over all repeats together; frames per second as mean over the repeats.

    frames: number per run. served: share of the frames with a result. The others were replaced by newer ones before
    they could be started, and do not count in the latencies.
    """
    results: dict[str, dict[str, Any]] = {
        case.name: {
            "latency_ms": distribution([ms for latencies, _ in repeated for ms in latencies]),
            "served": sum(len(latencies) for latencies, _ in repeated) / (frames * len(repeated)),
            "background_hz": fmean(hz for _, hz in repeated),
        }
        for case, repeated in runs
    }
    alone, fifo = results["alone"], results["fifo"]
    for case, _ in runs:
        result = results[case.name]
        result["p99_ratio"] = result["latency_ms"]["p99"] / alone["latency_ms"]["p99"]
        compared = not case.alone and fifo["background_hz"]
        result["throughput"] = result["background_hz"] / fifo["background_hz"] if compared else None
    return {"important": name, "cases": results}


def important_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    rows = [
        [
            row["important"],
            name,
            *(with_change(case["latency_ms"][part], None, 2) for part in ("p50", "p99")),
            f"{case['p99_ratio']:.2f}",
            f"{case['served']:.1%}",
            *(
                ("", "")
                if case["throughput"] is None
                else (f"{case['background_hz']:.0f}", f"{case['throughput']:.3f}")
            ),
        ]
        for row in figures["rows"]
        for name, case in row["cases"].items()
    ]
    header = ["important DNN", "case", "p50 ms", "p99 ms", "p99 over alone", "served", "others' frames/s", "over fifo"]
    return table(header, rows)


def _run(
    important: DnnTask, background: Sequence[DnnTask], plan: ImportantPlan, case: Case
) -> tuple[list[float], float]:
    """End-to-end milliseconds of the important DNN's frames, and the others' frames per second."""
    latencies: list[float] = []
    ends_ns: list[int] = []
    failures: list[Failure] = []

    def on_result(result: Result) -> None:
        if result.frame.camera == _CAMERA:
            latencies.append(result.timing.arrival_to_result_ns / 1e6)
        else:
            ends_ns.append(result.timing.finished_ns)
            if not over:
                engine.offer(_frame(result.frame.camera))

    tasks = [
        replace(important, cameras=(_CAMERA,), priority=0 if case.policy == "fifo" else _PRIORITY),
        *(replace(task, cameras=(task.name,), priority=0) for task in background),
    ]
    engine = Engine(
        tasks,
        workers=default_workers(plan.device, len(tasks)),
        policy=case.policy,
        device=plan.device,
        on_result=on_result,
        on_failure=failures.append,
        max_launched=case.bound,
    )
    over = False
    engine.start()
    try:
        if not case.alone:
            for task in background:
                engine.submit(_frame(task.name), _DRAIN_S)
                engine.submit(_frame(task.name), _DRAIN_S)  # returns once the first has started: one is always waiting
        time.sleep(_SETTLE_S)
        begin_ns = time.monotonic_ns()
        for number in range(_frames(plan)):
            time.sleep(max(0.0, begin_ns / 1e9 + number / plan.rate_hz - time.monotonic()))
            engine.offer(_frame(_CAMERA))
        end_ns = time.monotonic_ns()
        over = True
        finished = engine.wait_idle(_DRAIN_S)
    finally:
        engine.stop(2.0)
    if failures:
        raise CommandError(f"{failures[0].dnn} failed: {failures[0].message}")
    if not finished:
        raise CommandError(f"the engine did not finish its frames within {_DRAIN_S:g} s")
    if not latencies:
        raise CommandError(
            f"{case.name}: no frame of the important DNN was served within {plan.seconds:g} s; raise --seconds"
        )
    served = sum(begin_ns <= at < end_ns for at in ends_ns)
    return latencies, served * 1e9 / (end_ns - begin_ns)


def _frame(camera: str) -> Frame:
    return Frame(camera, time.monotonic_ns(), _IMAGE)
