"""A recording of generated road with exact ground truth, and the comparison of results with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.serialization import serialize_message
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.demo.recorded_frames import detections, lanes
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.ros.result_messages import class_names
from multi_dnn_ros.training.metrics import LaneScore, Truth, mean_average_precision
from multi_dnn_ros.training.scenes import LABELS, Scene, SceneGenerator

TOPIC = "/front/image_raw"
SIZE = (640, 480)
BEGIN_S = 1000
PERIOD_NS = 200_000_000
#: Index of the frame whose data array is one byte short.
CORRUPT = 7

OBJECTS, PEOPLE = ("car", "truck"), ("pedestrian",)


def scenes(count: int, seed: int = 90_001) -> list[Scene]:
    """Roads unknown to the DNNs, a different one in each frame, so that a few frames give a meaningful score."""
    generator = SceneGenerator(*SIZE, seed)
    return [generator.scene(index) for index in range(count)]


def stamp_ns(index: int) -> int:
    return BEGIN_S * 1_000_000_000 + index * PERIOD_NS


def index_of(message: Any) -> int:
    """Which frame a result belongs to, by its header."""
    stamp = message.header.stamp
    index, rest = divmod(stamp.sec * 1_000_000_000 + stamp.nanosec - stamp_ns(0), PERIOD_NS)
    assert rest == 0, f"stamp {stamp} belongs to no frame"
    return int(index)


def write_road(path: Path, drive: Sequence[Scene], storage: str = "mcap") -> Path:
    """Write every frame as rgb8, recorded 3 ms after its stamp; frame CORRUPT is damaged."""
    with BagWriter(path, storage) as writer:
        writer.add_topic(TOPIC, "sensor_msgs/msg/Image")
        for index, scene in enumerate(drive):
            header = Header(frame_id="windscreen")
            header.stamp.sec, header.stamp.nanosec = divmod(stamp_ns(index), 1_000_000_000)
            message = image_message(scene.image, header)
            if index == CORRUPT:
                message.data = message.data[:-1]
            writer.write(TOPIC, stamp_ns(index) + 3_000_000, serialize_message(message))
    return path


def box_score(messages: Iterable[Any], label_info: Any, drive: Sequence[Scene], labels: tuple[str, ...]) -> float:
    """mAP@0.5 of Detection2DArrays against the scenes they belong to. label_info: the LabelInfo of their DNN."""
    names = class_names(label_info)
    found, truths = [], []
    for message in messages:
        scene = drive[index_of(message)]
        found.append(detections(message, labels, names))
        truths.append(Truth(scene.boxes, scene.class_ids).among(LABELS, labels))
    return mean_average_precision(found, truths, labels)["map50"]


def lane_score(masks: Iterable[Any], points: Iterable[Any], drive: Sequence[Scene]) -> float:
    """Lane F1 of mask messages, whose points must lie on the mask's lines."""
    score = LaneScore()
    for mask, cloud in zip(masks, points, strict=True):
        assert mask.header == cloud.header
        found = lanes(mask, cloud)
        score.add(found.mask, drive[index_of(mask)].lane_mask)
        numbers = {line.number for line in found.lanes}
        assert set(np.unique(found.mask).tolist()) - {0} <= numbers
    return score.f1
