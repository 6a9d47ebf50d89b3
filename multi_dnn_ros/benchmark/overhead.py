"""The engine's overhead: jobs that compute almost nothing, run by the engine and called in a loop."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.engine import DnnTask, Engine, Frame

IMAGE = np.zeros((4, 4, 3), np.uint8)


def measure_overhead(jobs: int, frames: int, repeats: int, dnns: int, workers: int) -> dict[str, Any]:
    """Wall time in microseconds per job: `frames` frames of `dnns` DNNs with `jobs` jobs each, `repeats` times.

    The engine's figure covers everything from `submit` to the result: mailbox, queue, thread switches, statistics. The
    direct figure calls the same stages in sequence in one thread.
    """
    tasks = [
        DnnTask(
            f"dnn{number}", ("front",), lambda image: (torch.ones(1),), (_identity,) * jobs, lambda outputs, size: None
        )
        for number in range(dnns)
    ]
    through_engine, direct = [], []
    for _ in range(repeats):
        through_engine.append(_engine(tasks, frames, workers) / (frames * jobs * dnns) * 1e6)
        direct.append(_direct(tasks, frames) / (frames * jobs * dnns) * 1e6)
    return {
        "jobs": jobs,
        "dnns": dnns,
        "workers": workers,
        "frames": frames,
        "engine_us_per_job": distribution(through_engine),
        "direct_us_per_job": distribution(direct),
        "overhead_us_per_job": float(np.median(through_engine) - np.median(direct)),
    }


def _identity(carried: Tensors) -> Tensors:
    return carried


def _frame(number: int) -> Frame:
    return Frame("front", number, IMAGE)


def _engine(tasks: list[DnnTask], frames: int, workers: int) -> float:
    engine = Engine(tasks, workers=workers, on_result=lambda result: None)
    engine.start()
    try:
        engine.submit(_frame(0))
        engine.wait_idle(10.0)
        begin = time.perf_counter()
        for number in range(frames):
            engine.submit(_frame(number))
        if not engine.wait_idle(60.0):
            raise RuntimeError("the engine did not finish its frames within 60 s")
        return time.perf_counter() - begin
    finally:
        engine.stop(2.0)


def _direct(tasks: list[DnnTask], frames: int) -> float:
    begin = time.perf_counter()
    with torch.inference_mode():
        for number in range(frames):
            frame = _frame(number)
            for task in tasks:
                carried = task.preprocess(frame.tensor(torch.device("cpu")))
                for stage in task.stages:
                    carried = stage(carried)
                task.decode(carried, (4, 4))
    return time.perf_counter() - begin
