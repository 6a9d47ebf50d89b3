"""A picklable build whose DNNs obey their parameter `model`, for swaps.

``<index>[,<word>...]``: the first class index of their boxes, and words from :data:`WORDS`, or :data:`HELD` and the
path of a file. Built-in models have index 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from node_pipelines import build as build_plain

from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.results import Detections

#: What a word in a model does.
WORDS = {
    "wrong": "the model cannot be loaded",
    "memory": "it does not fit into the memory of the device",
    "abort": "the process aborts while it is configured",
    "brief": "configuring takes BRIEF_S",
    "long": "configuring takes LONG_S",
    "slow": "a frame takes 60 ms instead of 5 ms",
    "lanes": "the results are lane lines",
    "segfault": "the first frame ends the process",
    "renamed": "the class names are others",
}
#: Configuring takes until the file exists.
HELD = "held="
SHORT_S, SLOW_S = 0.005, 0.06
BRIEF_S, LONG_S = 1.5, 60.0


def index_of(model: str) -> int:
    """The class index of a model's boxes."""
    return 0 if ":" in model else int(model.split(",")[0])


def build(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Boxes of the size of the image; their score is the first value of the image / 255."""
    pipeline = build_plain(config, progress)
    tasks = []
    for task in pipeline.tasks:
        model = config.dnns[task.name].model
        words = set() if ":" in model else set(model.split(",")[1:])
        assert all(word in WORDS or word.startswith(HELD) for word in words), words
        _prepare(task.name, model, words, progress)
        output = pipeline.dnns[task.name].outputs[""]
        names = ("old", "new") if "renamed" in words else output.labels
        pipeline.dnns[task.name].outputs[""] = SimpleNamespace(
            labels=names, decoder=output.decoder, result_kind="lanes" if "lanes" in words else output.result_kind
        )
        tasks.append(replace(task, stages=(_stage(words),), decode=_decode(index_of(model), names, output.decoder)))
    return replace(pipeline, tasks=tuple(tasks))


#: An engine process imports it before it is configured.
build.modules = ("swap_pipelines",)  # type: ignore[attr-defined]


def _prepare(name: str, model: str, words: set[str], progress: Callable[[str], None]) -> None:
    if "wrong" in words:
        raise ValueError(f"parameter dnn.{name}.model is '{model}': not a model of this test")
    if "memory" in words:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    if "brief" in words:
        time.sleep(BRIEF_S)
    if "abort" in words:
        os.abort()
    if "long" in words:
        for number in range(round(LONG_S / 0.02)):
            progress(f"compiling job {number} of 3000")
            time.sleep(0.02)
    for word in words:
        while word.startswith(HELD) and not Path(word.removeprefix(HELD)).exists():
            time.sleep(0.01)


def _stage(words: set[str]) -> Callable:
    def run(carried: tuple) -> tuple:
        if "segfault" in words and float(carried[0]) > 0:  # not on the black image of warming up
            os.abort()
        time.sleep(SLOW_S if "slow" in words else SHORT_S)
        return (carried[0] / 255.0,)

    return run


def _decode(index: int, names: tuple[str, ...], decoder: Any) -> Callable:
    def decode(outputs: tuple, size: tuple[int, int]) -> Detections:
        box = np.array([[0, 0, size[1], size[0]]], np.float32)
        count = int(float(outputs[0]) >= decoder.score_threshold)
        scores = np.array([float(outputs[0])], np.float32)
        return Detections(box[:count], scores[:count], np.full(count, index, np.int64), names)

    return decode
