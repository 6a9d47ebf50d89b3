"""Boxes, and the pixels of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from multi_dnn_ros.vision.drawing import PALETTE, blend
from multi_dnn_ros.vision.placement import place_instances
from multi_dnn_ros.vision.result_kind import Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.result_kinds.detections import draw_boxes
from multi_dnn_ros.vision.results import InstanceMasks

_MESSAGES = "multi_dnn_ros.ros.result_messages"


def draw_instances(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the pixels of each instance, then draw the boxes. ValueError: a mask has another size."""
    colors = np.array([PALETTE[number % len(PALETTE)] for number in range(256)], np.float32)
    for layer in layers:
        if not layer.stale:
            blend(canvas, layer.output.pixels, colors, 0)
    draw_boxes(canvas, [replace(layer, output=layer.output.detections) for layer in layers], scale)


KIND = ResultKind(
    "instance_masks",
    InstanceMasks,
    (
        Topic(
            "detections",
            "vision_msgs/msg/Detection2DArray",
            f"{_MESSAGES}:instance_boxes_message",
        ),
        Topic("mask", "sensor_msgs/msg/Image", f"{_MESSAGES}:instance_mask_message", picture=True),
    ),
    draw=draw_instances,
    has_labels=True,
    place=place_instances,
)
