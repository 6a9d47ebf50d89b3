"""DNNs whose results a test can predict, and recordings of single-colored images."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.replay import Replay, msgtype_of
from multi_dnn_ros.replay.storage_files import BagMessage
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import Detections, Lane, Lanes

SECOND = 1_000_000_000
TOPIC = "/front/image_raw"
LABELS = ("thing",)


def mean_of(carried: Tensors) -> float:
    return float(carried[0].mean())


def detect(carried: Tensors, size: tuple[int, int]) -> Detections:
    """One box over the whole picture, with the picture's mean as its score."""
    box = np.array([[0, 0, size[1], size[0]]], np.float32)
    return Detections(box, np.array([mean_of(carried) / 255], np.float32), np.zeros(1, np.int64), LABELS)


def find_lanes(carried: Tensors, size: tuple[int, int]) -> Lanes:
    """A mask filled with the picture's mean, and one line on its left edge."""
    points = np.array([[0, size[0] - 1], [0, 0]], np.float32)
    lane = Lane(1, points, np.zeros(3), 0.5)
    return Lanes(np.full(size, round(mean_of(carried)), np.uint8), (lane,))


def task(
    name: str, decode: Callable[[Tensors, tuple[int, int]], Any] = detect, delay_s: float = 0.0, jobs: int = 2
) -> DnnTask:
    """A DNN with `jobs` jobs that pass the picture on unchanged; each job takes `delay_s`."""

    def stage(carried: Tensors) -> Tensors:
        time.sleep(delay_s)
        return carried

    return DnnTask(name, ("front",), lambda image: (image.to(torch.float32),), (stage,) * jobs, decode)


def picture(value: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def image(value: int, index: int, *, frame_id: str = "cam") -> Image:
    """An rgb8 image of one value, stamped `index` seconds and 5 ns."""
    header = Header(frame_id=frame_id)
    header.stamp.sec, header.stamp.nanosec = index, 5
    return image_message(picture(value), header)


def write_bag(path: Path, messages: list[tuple[str, int, Any]], storage: str = "mcap") -> Path:
    """A recording of (topic, recording time in ns, message or (type, CDR bytes))."""
    with BagWriter(path, storage) as writer:
        for topic, stamp_ns, message in messages:
            msgtype, data = message if isinstance(message, tuple) else (msgtype_of(message), serialize_message(message))
            writer.add_topic(topic, msgtype)
            writer.write(topic, stamp_ns, data)
    return path


def read_bag(path: Path) -> list[BagMessage]:
    with BagReader(path) as bag:
        assert not bag.damage
        return list(bag.messages())


def parsed(message: BagMessage) -> Any:
    """The message object of a recorded message."""
    import importlib

    package, _, name = message.msgtype.split("/")
    return deserialize_message(message.data, getattr(importlib.import_module(f"{package}.msg"), name))


def make_replay(tasks: list[DnnTask]) -> Replay:
    kinds = {task.name: RESULT_KINDS.get("lanes" if task.decode is find_lanes else "detections") for task in tasks}
    return Replay(tasks, kinds, {"front": TOPIC})
