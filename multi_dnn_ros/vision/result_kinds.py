"""The result kinds of this package: how each is drawn, moved from a window to the image, and published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.drawing import PALETTE, Color, blend, draw_tag, line_width
from multi_dnn_ros.vision.result_kind import GroundTopic, Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import NO_CLASS, Detections, InstanceMasks, Lanes, Mask
from multi_dnn_ros.vision.view import Window

_MESSAGES = "multi_dnn_ros.ros.result_messages"
#: Colours by class number, (256, 3); bluish green for all drivable areas.
_CLASS_COLORS = np.array([PALETTE[number % len(PALETTE)] for number in range(NO_CLASS + 1)], np.float32)
_AREA_COLORS = np.tile(np.array(PALETTE[2], np.float32), (NO_CLASS + 1, 1))

# -- drawing


def draw_boxes(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Boxes with class name and score, best scores on top."""
    names = sorted({label for layer in layers for label in layer.output.labels})
    colors = {name: PALETTE[(2 * number + 1) % len(PALETTE)] for number, name in enumerate(names)}
    tags = []
    for layer in layers:
        found: Detections = layer.output
        for index in range(len(found) - 1, -1, -1):
            class_id, score = int(found.class_ids[index]), float(found.scores[index])
            label = found.labels[class_id] if 0 <= class_id < len(found.labels) else str(class_id)
            color = colors.get(label, PALETTE[class_id % len(PALETTE)])
            x1, y1, x2, y2 = (round(value) for value in found.boxes[index].tolist())
            cv2.rectangle(canvas, (x1, y1), (x2, y2), color, line_width(scale), cv2.LINE_AA)
            identity = f"{found.ids[index]} " if found.ids is not None and found.ids[index] else ""
            tags.append((score, f"{label} {identity}{score:.2f}", (x1, y1, x2, y2), color))
    for _, text, box, color in sorted(tags, key=lambda tag: tag[0]):
        draw_tag(canvas, text, box, color, scale)


def lane_color(number: int) -> Color:
    """The colour of lane line `number`, 1 for the leftmost."""
    return PALETTE[(number - 1) % len(PALETTE)]


def draw_lanes(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Draw the lines and the pixels of each. ValueError: a mask has another size."""
    for layer in layers:
        blend(canvas, layer.output.mask, np.array([lane_color(number) for number in range(256)], np.float32), 0)
        for lane in layer.output.lanes:
            if len(lane.points) > 1:
                line = np.round(lane.points).astype(np.int32).reshape(-1, 1, 2)
                width = line_width(scale)
                cv2.polylines(canvas, [line], False, lane_color(lane.number), width, cv2.LINE_AA)


def draw_pixels(
    canvas: Image, layers: Sequence[Layer], scale: float, *, colors: npt.NDArray[np.float32], none: int = NO_CLASS
) -> None:
    """Colour the pixels by class. ValueError: a mask has another size."""
    for layer in layers:
        blend(canvas, layer.output.pixels, colors, none)


def draw_instances(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the pixels of each instance, then draw the boxes."""
    draw_pixels(canvas, layers, scale, colors=_CLASS_COLORS, none=0)
    draw_boxes(canvas, [replace(layer, output=layer.output.detections) for layer in layers], scale)


# -- from a window of the image to the whole image


def place_detections(found: Detections, window: Window, size: tuple[int, int]) -> Detections:
    """Boxes in pixels of a window -> boxes in pixels of the image. size: (H, W) of the image."""
    offset = np.array([window.left, window.top, window.left, window.top], np.float32)
    return replace(found, boxes=found.boxes + offset)


def place_lanes(found: Lanes, window: Window, size: tuple[int, int]) -> Lanes:
    """Lane lines in pixels of a window -> lines in pixels of the image. size: (H, W) of the image."""
    offset, top = np.array([window.left, window.top], np.float32), window.top
    lanes = []
    for lane in found.lanes:
        c0, c1, c2 = lane.curve.tolist()
        curve = np.array([window.left + c0 - c1 * top + c2 * top**2, c1 - 2.0 * c2 * top, c2])
        lanes.append(replace(lane, points=lane.points + offset, curve=curve))
    return Lanes(found.numbers, tuple(lanes), size, window)


def place_mask(found: Mask, window: Window, size: tuple[int, int]) -> Mask:
    """The classes of a window -> a mask of the image, without a class elsewhere. size: (H, W) of the image."""
    return replace(found, size=size, window=window)


def place_instances(found: InstanceMasks, window: Window, size: tuple[int, int]) -> InstanceMasks:
    """Boxes and pixels of a window -> those of the image. size: (H, W) of the image."""
    return replace(found, detections=place_detections(found.detections, window, size), size=size, window=window)


# -- kinds

LANES = ResultKind(
    "lanes",
    Lanes,
    (
        Topic("mask", "sensor_msgs/msg/Image", f"{_MESSAGES}:mask_message", picture=True),
        Topic("points", "sensor_msgs/msg/PointCloud2", f"{_MESSAGES}:lane_points_message"),
    ),
    draw=draw_lanes,
    draw_order=0,
    truth="lanes",
    score="multi_dnn_ros.training.metrics:score_lanes",
    place=place_lanes,
    ground_topics=(GroundTopic("ground_points", "sensor_msgs/msg/PointCloud2", f"{_MESSAGES}:lane_ground_message"),),
)
DETECTIONS = ResultKind(
    "detections",
    Detections,
    (Topic("detections", "vision_msgs/msg/Detection2DArray", f"{_MESSAGES}:detections_message"),),
    draw=draw_boxes,
    has_labels=True,
    truth="boxes",
    score="multi_dnn_ros.training.metrics:score_detections",
    place=place_detections,
)
SEMANTIC_MASK = ResultKind(
    "semantic_mask",
    Mask,
    (Topic("mask", "sensor_msgs/msg/Image", f"{_MESSAGES}:mask_message", picture=True),),
    draw=partial(draw_pixels, colors=_CLASS_COLORS),
    draw_order=-2,
    has_labels=True,
    place=place_mask,
)
INSTANCE_MASKS = ResultKind(
    "instance_masks",
    InstanceMasks,
    (
        Topic("detections", "vision_msgs/msg/Detection2DArray", f"{_MESSAGES}:detections_message"),
        Topic("mask", "sensor_msgs/msg/Image", f"{_MESSAGES}:mask_message", picture=True),
    ),
    draw=draw_instances,
    has_labels=True,
    place=place_instances,
)
DRIVABLE_AREA = ResultKind(
    "drivable_area",
    Mask,
    (Topic("mask", "sensor_msgs/msg/Image", f"{_MESSAGES}:area_mask_message", picture=True),),
    draw=partial(draw_pixels, colors=_AREA_COLORS),
    draw_order=-1,
    place=place_mask,
)
