"""Lane lines: a mask of line numbers, and points on fitted curves."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from multi_dnn_ros.vision.agreement import compare_lanes
from multi_dnn_ros.vision.drawing import PALETTE, Color, blend, line_width
from multi_dnn_ros.vision.placement import place_lanes
from multi_dnn_ros.vision.result_kind import GroundTopic, Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import Lanes


def lane_color(number: int) -> Color:
    """The colour of lane line `number`, 1 for the leftmost."""
    return PALETTE[(number - 1) % len(PALETTE)]


def draw_lanes(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Draw the lines and the pixels of each. ValueError if a mask's size is not the canvas's."""
    for layer in layers:
        _draw(canvas, layer.output, layer.stale, scale)


def _draw(canvas: Image, lanes: Lanes, stale: bool, scale: float) -> None:
    mask = lanes.mask
    if mask.shape != canvas.shape[:2]:
        raise ValueError(f"lane mask has shape {mask.shape}; expected the shape of the image: {canvas.shape[:2]}")
    if not stale:
        blend(canvas, mask, np.array([lane_color(number) for number in range(256)], np.float32), 0)
    for lane in lanes.lanes:
        if len(lane.points) > 1:
            line = np.round(lane.points).astype(np.int32).reshape(-1, 1, 2)
            cv2.polylines(canvas, [line], False, lane_color(lane.number), line_width(scale, stale), cv2.LINE_AA)


KIND = ResultKind(
    "lanes",
    Lanes,
    (
        Topic("mask", "sensor_msgs/msg/Image", "multi_dnn_ros.ros.result_messages:lane_mask_message", picture=True),
        Topic("points", "sensor_msgs/msg/PointCloud2", "multi_dnn_ros.ros.result_messages:lane_points_message"),
    ),
    draw=draw_lanes,
    draw_order=0,
    truth="lanes",
    score="multi_dnn_ros.training.metrics:score_lanes",
    place=place_lanes,
    agreement=compare_lanes,
    ground_topics=(
        GroundTopic(
            "ground_points", "sensor_msgs/msg/PointCloud2", "multi_dnn_ros.ros.result_messages:lane_ground_message"
        ),
    ),
)
