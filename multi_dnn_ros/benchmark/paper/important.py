"""An important DNN at the rate of a camera beside background DNNs that never idle, through the engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.benchmark.paper.dnns import Prepared, Work, own_stream, prepare_dnns
from multi_dnn_ros.benchmark.paper.loops import bare_launch, make_task, running_engine
from multi_dnn_ros.serving.choices import default_workers

ALONE, BARE = "alone", "bare loop"
RATE_HZ = 30.0
_IMPORTANT = "important"


def measure_important(work: Work, seconds: float, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Latency of the first DNN of `work` at RATE_HZ alone, and beside the others under each policy; frames per second
    of the others, also of the same prepared stages in a bare loop without the engine. Medians over the repeats.

    Raises RuntimeError if a DNN fails.
    """
    device = torch.device(work.device)
    important, *background = prepare_dnns(work, device)
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(repeats):
        for name in (ALONE, "fifo", "priority", "edf"):
            others = [] if name == ALONE else background
            found = _through_engine(important, others, device, "fifo" if name == ALONE else name, seconds)
            runs.setdefault(name, []).append(found)
        runs.setdefault(BARE, []).append({"background_hz": _bare_loop(work, background, device, seconds)})
        say(f"{work.networks[0].builder}: run {number + 1} of {repeats}")
    summary = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]} for name, found in runs.items()
    }
    return {"important": work.networks[0].builder, "background": [it.builder for it in work.networks[1:]], "runs": runs,
            "summary": summary}  # fmt: skip


def _through_engine(
    important: Prepared, background: Sequence[Prepared], device: torch.device, policy: str, seconds: float
) -> dict[str, float]:
    tasks = [make_task(_IMPORTANT, [_IMPORTANT], important.chains, important.inputs, important.state, important=True)]
    tasks += [
        make_task(f"b{number}", [f"b{number}"], it.chains, it.inputs, it.state) for number, it in enumerate(background)
    ]
    end_s = time.monotonic() + seconds
    latencies_ms: list[float] = []
    frames = [0]

    def on_result(camera: str, offered_ns: int) -> None:
        if camera == _IMPORTANT:
            latencies_ms.append((time.monotonic_ns() - offered_ns) / 1e6)
        elif time.monotonic() < end_s:
            frames[0] += 1
            offer(camera)

    with running_engine(tasks, device, on_result, policy) as offer:
        for task in tasks[1:]:
            offer(task.name)
        due_s = time.monotonic()
        while due_s < end_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            offer(_IMPORTANT)
            due_s += 1.0 / RATE_HZ
    p50, p99 = np.percentile(latencies_ms, (50, 99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99, "samples": len(latencies_ms), "background_hz": frames[0] / seconds}


def _bare_loop(work: Work, dnns: Sequence[Prepared], device: torch.device, seconds: float) -> float:
    """Frames per second of a loop that launches each DNN as soon as its last frame is finished: on a GPU one thread,
    which polls events; on a CPU as many threads as the engine has workers.
    """
    count = default_workers(device, len(dnns))
    end_s = time.monotonic() + seconds

    def loop(served: Sequence[Prepared]) -> int:
        launches = [bare_launch(dnn.chains[1], dnn.inputs) for dnn in served]
        streams, frames = [own_stream(work, device) for _ in served], 0
        events = [torch.cuda.Event() if device.type == "cuda" else None for _ in served]
        with torch.inference_mode():
            while time.monotonic() < end_s:
                for launch, stream, event in zip(launches, streams, events, strict=True):
                    if event is not None and not event.query():
                        continue
                    with ExitStack() as stack:
                        stack.enter_context(stream)
                        launch()
                        if event is not None:
                            event.record()
                    frames += 1
        return frames

    with ThreadPoolExecutor(count) as threads:
        return sum(threads.map(loop, [dnns[number::count] for number in range(count)])) / seconds


def important_rows(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per important DNN and policy: latency, also over that alone, and background frames, also over fifo's."""
    rows = []
    for each in found:
        alone, fifo = each["summary"][ALONE], each["summary"]["fifo"]
        for policy, it in each["summary"].items():
            over = {"over_alone": it["p99_ms"] / alone["p99_ms"]} if "p99_ms" in it else {}
            over["background_over_fifo"] = it["background_hz"] / fifo["background_hz"]
            rows.append({"important": each["important"], "policy": policy, **it, **over})
    return rows
