"""Boxes with a class and a score each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2

from multi_dnn_ros.vision.agreement import compare_detections
from multi_dnn_ros.vision.drawing import PALETTE, Color, line_width
from multi_dnn_ros.vision.placement import place_detections
from multi_dnn_ros.vision.result_kind import Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import Detections
from multi_dnn_ros.vision.tags import Tag, draw_tags


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


KIND = ResultKind(
    "detections",
    Detections,
    (
        Topic(
            "detections",
            "vision_msgs/msg/Detection2DArray",
            "multi_dnn_ros.ros.result_messages:detections_message",
        ),
    ),
    draw=draw_boxes,
    has_labels=True,
    truth="boxes",
    score="multi_dnn_ros.training.metrics:score_detections",
    place=place_detections,
    agreement=compare_detections,
)
