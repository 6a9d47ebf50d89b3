"""Picklable builds of trivial DNNs, also for engines in other processes.

The first value of an image selects what the DNN does.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig
from multi_dnn_ros.vision.results import Detections, Lane, Lanes

#: First values of images. 0 is normal, because the first run is on a black image.
RAISE, SEGFAULT, GPU_FAULT, BUSY = range(1, 5)
_kept: list[Any] = []  # sessions, whose threads end with them


def settings(*dnns: str, cameras: tuple[str, ...] = ("front",), **parameters: Any) -> NodeConfig:
    """DNNs named `lane...` and `mask...` have the role lane; all others are detectors."""
    return NodeConfig(
        cameras={camera: CameraConfig(max_pixels=1280 * 720) for camera in cameras},
        dnns={
            name: DnnConfig(role="lane" if name.startswith(("lane", "mask")) else "object", model="builtin:object")
            for name in dnns
        },
        **parameters,
    )


def build(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Results: a box of the size of the image with the first value / 255 as its score, or a mask of the first value."""
    tasks, dnns = [], {}
    for number, (name, dnn) in enumerate(config.dnns.items(), start=1):
        decoder = SimpleNamespace(
            score_threshold=dnn.score_threshold, own_threshold=0.25, iou_threshold=0.5, max_detections=10
        )
        output = SimpleNamespace(labels=("thing", "other"), decoder=decoder, result_kind="detections")
        dnns[name] = SimpleNamespace(outputs={"": output})
        tasks.append(
            DnnTask(
                name=name,
                cameras=tuple(dnn.cameras or config.cameras),
                preprocess=lambda image: (image[0, 0, 0].to(torch.float32),),
                stages=(_act, lambda carried: carried),
                decode=_mask if dnn.role == "lane" else _detector(decoder),
            )
        )
        progress(f"DNN {number} of {len(config.dnns)}: {name} ready")
    return Pipeline(torch.device("cpu"), 2, tuple(tasks), dnns)


def build_with_one_faulty(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Like build, but only the DNN `faulty` executes the fault that an image contains."""
    pipeline = build(config, progress)
    tasks = (
        task if task.name == "faulty" else replace(task, stages=(lambda carried: carried,)) for task in pipeline.tasks
    )
    return replace(pipeline, tasks=tuple(tasks))


def build_wrong(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Raises an expected error: a wrong parameter."""
    raise ValueError("parameter dnn.object.model is 'nothing'\nand another line")


def build_broken(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Raises an unexpected error."""
    raise KeyError("broken")


def build_with_unsendable_labels(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Its description cannot be sent to the node."""
    pipeline = build(config, progress)
    for dnn in pipeline.dnns.values():
        dnn.outputs[""].labels = (threading.Lock(),)
    return pipeline


def build_crashing(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Starts a child process and crashes."""
    progress("about to crash")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    progress(f"child {child.pid}")
    os.abort()


def build_ending_slowly(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """The process takes 5 s to exit, as with a driver that cleans up after a fault."""
    end = os._exit

    def end_slowly(code: int) -> None:
        time.sleep(5.0)
        end(code)

    os._exit = end_slowly
    return build(config, progress)


def build_with_session(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Logs, prints, and reports the nice value of the configuring thread and the ids of the threads that a session of
    ONNX Runtime for three threads starts.
    """
    from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
    from multi_dnn_ros.models.cut import cut_module

    progress(f"nice {os.getpriority(os.PRIO_PROCESS, threading.get_native_id())}")
    logging.getLogger("multi_dnn_ros.test").info("logged")
    print("printed")
    torch.set_num_threads(3)
    before = set(os.listdir("/proc/self/task"))
    image = (torch.zeros(1, 3, 8, 8),)
    cut = cut_module(torch.nn.Conv2d(3, 4, 3).eval(), image, 1)
    _kept.extend(OnnxRuntime().prepare(cut, image, torch.device("cpu")))
    progress(" ".join(["started", *sorted(set(os.listdir("/proc/self/task")) - before)]))
    return build(config, progress)


def build_slowly(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Takes a minute, with a progress line every 20 ms."""
    for number in range(3000):
        progress(f"compiling job {number} of 3000")
        time.sleep(0.02)
    return build(config, progress)


def _act(carried: tuple) -> tuple:
    value = int(carried[0])
    if value == RAISE:
        raise RuntimeError("this image raises")
    if value == SEGFAULT:
        ctypes.string_at(1)
    if value == GPU_FAULT:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")
    if value == BUSY:  # without the GIL
        ctypes.CDLL(None).sleep(600)
    return carried


def _detector(decoder: Any) -> Callable:
    def decode(outputs: tuple, size: tuple[int, int]) -> Detections:
        score = float(outputs[0]) / 255
        count = int(score >= decoder.score_threshold)
        return Detections(
            np.array([[0, 0, size[1], size[0]]], np.float32)[:count],
            np.array([score], np.float32)[:count],
            np.zeros(count, np.int64),
            ("thing", "other"),
        )

    return decode


def _mask(outputs: tuple, size: tuple[int, int]) -> Lanes:
    mask = np.full(size, int(outputs[0]), np.uint8)
    points = np.array([[0, size[0] - 1], [0, 0]], np.float32)
    return Lanes(mask, (Lane(1, points, np.zeros(3), float(outputs[0])),))
