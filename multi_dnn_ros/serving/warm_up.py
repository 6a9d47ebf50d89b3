"""Runs every DNN once before the first frame.

This way the first frame is neither delayed by allocations nor lost to an error of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH, run_on_black
from multi_dnn_ros.serving.sendable import check_sendable


def warm_up(tasks: Sequence[DnnTask], device: torch.device, progress: Callable[[str], None]) -> None:
    """Run each task on a black image, including decoding, and check that its result can be sent to another process.

    Raises RuntimeError with the name of a DNN that fails; ExtensionError if a decoder of another package fails, or if
    the result cannot be sent.

    progress: called with a line for each DNN.
    """
    for task in tasks:
        begin = time.perf_counter()
        try:
            check_sendable(run_on_black(task, device, *task.enlarge_to_min((HEIGHT, WIDTH))))
        except ExtensionError as error:
            raise ExtensionError(f"DNN '{task.name}' fails on a black image: {error}") from error
        except Exception as error:
            raise RuntimeError(f"DNN '{task.name}' fails on a black image: {type(error).__name__}: {error}") from error
        progress(f"DNN {task.name}: first run took {(time.perf_counter() - begin) * 1e3:.0f} ms")
