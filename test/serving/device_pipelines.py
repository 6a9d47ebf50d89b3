"""Picklable builds whose DNNs take a time that depends on their device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from fake_pipelines import build

from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.results import Detections

#: Seconds per frame, by device.
DELAYS_S = {"cpu:1": 0.02, "cpu:2": 0.04}
#: An image of this value takes SLOW_S longer on cpu:2.
SLOW, SLOW_S = 99, 0.5


def build_by_device(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Results: one box; its left edge is the first value of the image, its score the process id / 1e8."""
    pipeline = build(config, progress)
    delay_s = DELAYS_S.get(config.device, 0.01)

    def wait(carried: tuple) -> tuple:
        time.sleep(delay_s + (SLOW_S if config.device == "cpu:2" and int(carried[0]) == SLOW else 0.0))
        return carried

    def decode(outputs: tuple, size: tuple[int, int]) -> Detections:
        box = np.array([[float(outputs[0]), 0, size[1], size[0]]], np.float32)
        return Detections(box, np.array([os.getpid() / 1e8]), np.zeros(1, np.int64), ("thing", "other"))

    return replace(pipeline, tasks=tuple(replace(task, stages=(wait,), decode=decode) for task in pipeline.tasks))
