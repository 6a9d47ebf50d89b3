"""One important DNN at a camera's rate among heavy ones that never idle: its latency, and what the others lose."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.choices import default_workers
from multi_dnn_ros.cli.errors import CommandError
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame, Result
from multi_dnn_ros.engine.engine import MAX_LAUNCHED
from multi_dnn_ros.reporting import against, distribution, table

#: What is aimed at: p99 of the important DNN over its p99 alone, and the background's throughput over that under fifo.
MOST_P99_RATIO, LEAST_THROUGHPUT = 1.5, 0.95
_PRIORITY = 10
_CAMERA = "front"
_IMAGE = np.zeros((4, 4, 3), np.uint8)
_SETTLE_S = 0.5
_DRAIN_S = 60.0


@dataclass(frozen=True)
class Case:
    """policy: of the engine. bound: its max_launched. alone: the background gets no frames."""

    name: str
    policy: str
    bound: int | None = MAX_LAUNCHED
    alone: bool = False


def cases(bounds: Sequence[int | None]) -> tuple[Case, ...]:
    """The baselines, and policy priority with each bound; None: no bound."""
    ordered = (Case("priority" if bound == MAX_LAUNCHED else f"priority, {_words(bound)}", "priority", bound)
               for bound in bounds)  # fmt: skip
    return (Case("alone", "priority", alone=True), Case("fifo", "fifo"), *ordered)


def _words(bound: int | None) -> str:
    return "no bound" if bound is None else f"at most {bound}"


def measure_important(
    important: Mapping[str, DnnTask],
    background: Sequence[DnnTask],
    device: torch.device,
    *,
    rate_hz: float,
    seconds: float,
    repeats: int,
    seed: int = 0,
    bounds: Sequence[int | None] = (MAX_LAUNCHED,),
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Each of the important DNNs by itself among the same others, every case in random order, repeated.

    important: by the network's name. rate_hz: of the important DNN's camera; each of the others always has a frame that
    waits. alone: in the same engine, with the others idle. Under fifo all priorities are equal.
    """
    wanted = cases(bounds)
    order = [(name, case) for _ in range(repeats) for name in important for case in wanted]
    random.Random(seed).shuffle(order)
    found: dict[tuple[str, str], list[tuple[list[float], float]]] = {}
    for number, (name, case) in enumerate(order, start=1):
        run = _run(important[name], background, device, case, rate_hz, seconds)
        found.setdefault((name, case.name), []).append(run)
        progress(f"run {number} of {len(order)}: {name} important, {case.name}")
    rows = [_row(name, [(case, found[name, case.name]) for case in wanted]) for name in important]
    return {
        "rate_hz": rate_hz,
        "background": [task.name for task in background],
        "max_launched": MAX_LAUNCHED,
        "aims": {"p99_ratio": MOST_P99_RATIO, "throughput": LEAST_THROUGHPUT},
        "rows": rows,
    }


def _row(name: str, runs: Sequence[tuple[Case, Sequence[tuple[list[float], float]]]]) -> dict[str, Any]:
    """Latencies of all repeats together; frames a second as the mean over the repeats."""
    results: dict[str, dict[str, Any]] = {
        case.name: {
            "latency_ms": distribution([ms for latencies, _ in repeated for ms in latencies]),
            "background_hz": fmean(hz for _, hz in repeated),
        }
        for case, repeated in runs
    }
    alone, fifo = results["alone"], results["fifo"]
    for case, _ in runs:
        result = results[case.name]
        result["p99_ratio"] = result["latency_ms"]["p99"] / alone["latency_ms"]["p99"]
        result["throughput"] = None if case.alone else result["background_hz"] / fifo["background_hz"]
    return {"important": name, "cases": results}


def important_table(figures: Mapping[str, Any]) -> str:
    """For the terminal."""
    rows = [
        [
            row["important"],
            name,
            *(against(case["latency_ms"][part], None, 2) for part in ("p50", "p99")),
            f"{case['p99_ratio']:.2f}",
            *(
                ("", "")
                if case["throughput"] is None
                else (f"{case['background_hz']:.0f}", f"{case['throughput']:.3f}")
            ),
        ]
        for row in figures["rows"]
        for name, case in row["cases"].items()
    ]
    header = ["important DNN", "case", "p50 ms", "p99 ms", "p99 over alone", "others' frames/s", "over fifo"]
    return table(header, rows)


def _run(
    important: DnnTask, background: Sequence[DnnTask], device: torch.device, case: Case, rate_hz: float, seconds: float
) -> tuple[list[float], float]:
    """End-to-end milliseconds of the important DNN's frames, and the others' frames a second."""
    latencies: list[float] = []
    ends_ns: list[int] = []
    failures: list[Failure] = []

    def on_result(result: Result) -> None:
        if result.frame.camera == _CAMERA:
            latencies.append(result.timing.end_to_end_ns / 1e6)
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
        workers=default_workers(device, len(tasks)),
        policy=case.policy,
        device=device,
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
                engine.submit(_frame(task.name), _DRAIN_S)  # once it has begun the first: one waits from then on
        time.sleep(_SETTLE_S)
        begin_ns = time.monotonic_ns()
        for number in range(max(2, round(seconds * rate_hz))):
            time.sleep(max(0.0, begin_ns / 1e9 + number / rate_hz - time.monotonic()))
            engine.offer(_frame(_CAMERA))
        end_ns = time.monotonic_ns()
        over = True
        through = engine.wait_idle(_DRAIN_S)
    finally:
        engine.stop(2.0)
    if failures:
        raise CommandError(f"{failures[0].dnn} failed: {failures[0].message}")
    if not through:
        raise CommandError(f"the engine did not finish its frames within {_DRAIN_S:g} s")
    served = sum(begin_ns <= at < end_ns for at in ends_ns)
    return latencies, served * 1e9 / (end_ns - begin_ns)


def _frame(camera: str) -> Frame:
    return Frame(camera, time.monotonic_ns(), lambda: _IMAGE)
