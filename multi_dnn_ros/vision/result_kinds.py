"""The result kinds of this package: how each is drawn, moved from a window to the image, and published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import cv2
import numpy as np

from multi_dnn_ros.vision.drawing import PALETTE, Color, blend, line_width
from multi_dnn_ros.vision.result_kind import GroundTopic, Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import NO_CLASS, Detections, InstanceMasks, Lane, Lanes, Mask
from multi_dnn_ros.vision.tags import Tag, draw_tags
from multi_dnn_ros.vision.view import Window

_MESSAGES = "multi_dnn_ros.ros.result_messages"
#: Colours by class number, (256, 3); bluish green for all drivable areas.
_CLASS_COLORS = np.array([PALETTE[number % len(PALETTE)] for number in range(NO_CLASS + 1)], np.float32)
_AREA_COLORS = np.tile(np.array(PALETTE[2], np.float32), (NO_CLASS + 1, 1))

# -- drawing


def draw_boxes(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Boxes with class name and score, best scores on top; results of earlier frames have thin boxes without text."""
    colors = _colors([layer.output for layer in layers])
    tags: list[tuple[float, Tag]] = []
    for layer in layers:
        width = line_width(scale, layer.stale)
        for score, tag in reversed(_tags(layer.output, colors)):
            cv2.rectangle(canvas, tag.box[:2], tag.box[2:], tag.color, width, cv2.LINE_AA)
            if not layer.stale:
                tags.append((score, tag))
    draw_tags(canvas, [tag for _, tag in sorted(tags, key=lambda each: -each[0])], scale)


def _colors(outputs: Sequence[Detections]) -> Mapping[str, Color]:
    """A colour for each class name, the same in all frames."""
    names = sorted({label for output in outputs for label in output.labels})
    return {name: PALETTE[(2 * number + 1) % len(PALETTE)] for number, name in enumerate(names)}


def _tags(found: Detections, colors: Mapping[str, Color]) -> list[tuple[float, Tag]]:
    """Score and tag of each box, in the order of the boxes."""
    ids = [0] * len(found) if found.ids is None else found.ids.tolist()
    tags = []
    for box, score, class_id, identity in zip(found.boxes, found.scores, found.class_ids, ids, strict=True):
        label = found.labels[class_id] if 0 <= class_id < len(found.labels) else str(class_id)
        color = colors.get(label, PALETTE[int(class_id) % len(PALETTE)])
        x1, y1, x2, y2 = (round(float(value)) for value in box)
        text = f"{label} {identity} {score:.2f}" if identity else f"{label} {score:.2f}"
        tags.append((float(score), Tag(text, (x1, y1, x2, y2), color)))
    return tags


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


def draw_masks(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the pixels by class. Masks of earlier frames are not drawn. ValueError: a mask has another size."""
    for layer in layers:
        if not layer.stale:
            blend(canvas, layer.output.pixels, _CLASS_COLORS, NO_CLASS)


def draw_areas(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the area. Areas of earlier frames are not drawn. ValueError: a mask has another size."""
    for layer in layers:
        if not layer.stale:
            blend(canvas, layer.output.pixels, _AREA_COLORS, NO_CLASS)


def draw_instances(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the pixels of each instance, then draw the boxes. ValueError: a mask has another size."""
    for layer in layers:
        if not layer.stale:
            blend(canvas, layer.output.pixels, _CLASS_COLORS, 0)
    draw_boxes(canvas, [replace(layer, output=layer.output.detections) for layer in layers], scale)


# -- from a window of the image to the whole image


def place_detections(found: Detections, window: Window, size: tuple[int, int]) -> Detections:
    """Boxes in pixels of a window -> boxes in pixels of the image. size: (H, W) of the image."""
    offset = np.array([window.left, window.top, window.left, window.top], np.float32)
    return replace(found, boxes=found.boxes + offset)


def place_lanes(found: Lanes, window: Window, size: tuple[int, int]) -> Lanes:
    """Lane lines in pixels of a window -> lines in pixels of the image. size: (H, W) of the image."""
    lanes = tuple(_place_lane(lane, window) for lane in found.lanes)
    return Lanes(found.numbers, lanes, size, window)


def place_mask(found: Mask, window: Window, size: tuple[int, int]) -> Mask:
    """The classes of a window -> a mask of the image, without a class elsewhere. size: (H, W) of the image."""
    return replace(found, size=size, window=window)


def place_instances(found: InstanceMasks, window: Window, size: tuple[int, int]) -> InstanceMasks:
    """Boxes and pixels of a window -> those of the image. size: (H, W) of the image."""
    return replace(found, detections=place_detections(found.detections, window, size), size=size, window=window)


def _place_lane(lane: Lane, window: Window) -> Lane:
    c0, c1, c2 = lane.curve.tolist()
    top = window.top
    curve = np.array([window.left + c0 - c1 * top + c2 * top**2, c1 - 2.0 * c2 * top, c2])
    return replace(lane, points=lane.points + np.array([window.left, top], np.float32), curve=curve)


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
    draw=draw_masks,
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
    draw=draw_areas,
    draw_order=-1,
    place=place_mask,
)
