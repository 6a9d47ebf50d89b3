"""Runs every DNN once before the first frame.

This way the first frame is neither delayed by allocations nor lost to an error of the model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.serving.sendable import check_sendable

_HEIGHT, _WIDTH = 480, 640
_TIMED_RUNS = 5


def warm_up(tasks: Sequence[DnnTask], device: torch.device, progress: Callable[[str], None]) -> None:
    """Run each task on a black image, including decoding, and check that its result can be sent to another process.

    Raises RuntimeError with the name of a DNN that fails; ExtensionError if a decoder of another package fails, or if
    the result cannot be sent.

    progress: called with a line for each DNN.
    """
    for task in tasks:
        begin = time.perf_counter()
        try:
            check_sendable(run_on_black(task, device, *task.enlarge_to_min((_HEIGHT, _WIDTH))))
        except ExtensionError as error:
            raise ExtensionError(f"DNN '{task.name}' fails on a black image: {error}") from error
        except Exception as error:
            raise RuntimeError(f"DNN '{task.name}' fails on a black image: {type(error).__name__}: {error}") from error
        progress(f"DNN {task.name}: first run took {(time.perf_counter() - begin) * 1e3:.0f} ms")


def run_on_black(task: DnnTask, device: torch.device, height: int, width: int) -> Any:
    """The result of a task for a black image of this size, from preprocessing to decoding."""
    with torch.inference_mode():
        inputs = task.preprocess(torch.zeros((height, width, 3), dtype=torch.uint8, device=device))
        outputs = run_stages(task.stages, inputs)
        if task.condense is not None:
            outputs = task.condense(outputs)
        return task.decode(tuple(tensor.cpu() for tensor in outputs), (height, width))


def time_on_black_ms(task: DnnTask, device: torch.device) -> float:
    """Median wall time of a frame, from preprocessing to decoding, while nothing else runs.

    The image has 640 x 480 pixels, or more if the DNN's window is larger.
    """
    times = []
    for _ in range(_TIMED_RUNS):
        begin = time.perf_counter()
        run_on_black(task, device, *task.enlarge_to_min((_HEIGHT, _WIDTH)))
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)
