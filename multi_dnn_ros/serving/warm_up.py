"""Runs every DNN once before the first frame, so that allocations and errors of a model do not meet a frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from multi_dnn_ros.engine.task import DnnTask

_HEIGHT, _WIDTH = 480, 640


def warm_up(tasks: Sequence[DnnTask], device: torch.device, progress: Callable[[str], None]) -> None:
    """Run each task on a black image, including decoding. Raises RuntimeError that names a DNN that fails.

    progress: called with a line for each DNN.
    """
    image = torch.zeros((_HEIGHT, _WIDTH, 3), dtype=torch.uint8, device=device)
    for task in tasks:
        begin = time.perf_counter()
        try:
            with torch.inference_mode():
                carried = task.preprocess(image)
                for stage in task.stages:
                    carried = stage(carried)
                if task.condense is not None:
                    carried = task.condense(carried)
                task.decode(tuple(tensor.cpu() for tensor in carried), (_HEIGHT, _WIDTH))
        except Exception as error:
            raise RuntimeError(f"DNN '{task.name}' fails on a black image: {type(error).__name__}: {error}") from error
        progress(f"DNN {task.name}: first run took {(time.perf_counter() - begin) * 1e3:.0f} ms")
