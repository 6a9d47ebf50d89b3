"""DNNs of one addition for the node's tests. Without ROS, which an engine process does not have."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.results import Detections, Lane, Lanes, OutputError

#: Images of this value make a DNN named `fragile` raise, and one named `dizzy` return what is no number.
POISON = 66


def build(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """DNNs of one addition: a detection of the whole image, whose score is its first value, or one upright line."""
    tasks, dnns = [], {}
    for name, settings in config.dnns.items():
        threshold = settings.score_threshold
        decoder = SimpleNamespace(
            score_threshold=threshold, own_threshold=threshold, iou_threshold=0.5, max_detections=10
        )
        kind = "lanes" if settings.role == "lane" else "detections"
        output = SimpleNamespace(labels=("thing", "other"), decoder=decoder, result_kind=kind)
        dnns[name] = SimpleNamespace(outputs={"": output})
        tasks.append(
            DnnTask(
                name=name,
                cameras=tuple(settings.cameras or config.cameras),
                preprocess=lambda image: (image[0, 0, 0].to(torch.float32),),
                stages=(_stage(name), lambda carried: carried),
                decode=_lane if settings.role == "lane" else _detect(decoder),
            )
        )
    return Pipeline(torch.device("cpu"), 2, tuple(tasks), dnns)


def _stage(name: str) -> Callable:
    def run(carried: tuple) -> tuple:
        if name == "fragile" and float(carried[0]) == POISON:
            raise RuntimeError("poisoned")
        return (carried[0] * (float("nan") if name == "dizzy" and float(carried[0]) == POISON else 1.0) / 255.0,)

    return run


def _detect(decoder: Any) -> Callable:
    def decode(outputs: tuple, size: tuple[int, int]) -> Detections:
        if not bool(torch.isfinite(outputs[0])):
            raise OutputError("output 0 holds NaN or infinite values: 1 of 1")
        count = int(float(outputs[0]) >= decoder.score_threshold)
        return Detections(
            np.array([[0, 0, size[1], size[0]]], np.float32)[:count],
            np.array([float(outputs[0])], np.float32)[:count],
            np.zeros(count, np.int64),
            ("thing", "other"),
        )

    return decode


def _lane(outputs: tuple, size: tuple[int, int]) -> Lanes:
    mask = np.zeros(size, np.uint8)
    mask[:, 0] = 1
    points = np.array([[0, size[0] - 1], [0, 0]], np.float32)
    return Lanes(mask, (Lane(1, points, np.zeros(3), float(outputs[0])),))
