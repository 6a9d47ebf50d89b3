"""Boxes with a class and a score each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2

from multi_dnn_ros.vision.agreement import compare_detections
from multi_dnn_ros.vision.drawing import PALETTE, Color, draw_tag, line_width
from multi_dnn_ros.vision.merging import merge_detections
from multi_dnn_ros.vision.placement import place_detections
from multi_dnn_ros.vision.result_kind import Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import Detections


def draw_boxes(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Boxes with class name and score, best scores on top."""
    colors = _colors([layer.output for layer in layers])
    for layer in layers:
        _draw(canvas, layer.output, colors, layer.stale, scale)


def _colors(outputs: Sequence[Detections]) -> Mapping[str, Color]:
    """A colour for each class name, the same in all frames."""
    names = sorted({label for output in outputs for label in output.labels})
    return {name: PALETTE[(2 * number + 1) % len(PALETTE)] for number, name in enumerate(names)}


def _draw(canvas: Image, found: Detections, colors: Mapping[str, Color], stale: bool, scale: float) -> None:
    ids = [0] * len(found) if found.ids is None else found.ids.tolist()
    rows = zip(found.boxes, found.scores, found.class_ids, ids, strict=True)
    for box, score, class_id, identity in reversed(list(rows)):
        label = found.labels[class_id] if 0 <= class_id < len(found.labels) else str(class_id)
        color = colors.get(label, PALETTE[int(class_id) % len(PALETTE)])
        x1, y1, x2, y2 = (round(float(value)) for value in box)
        cv2.rectangle(canvas, (x1, y1), (x2, y2), color, line_width(scale, stale), cv2.LINE_AA)
        if not stale:
            draw_tag(
                canvas,
                f"{label} {identity} {score:.2f}" if identity else f"{label} {score:.2f}",
                (x1, y1),
                color,
                scale,
            )


KIND = ResultKind(
    "detections",
    Detections,
    (
        Topic(
            "detections",
            "vision_msgs/msg/Detection2DArray",
            "multi_dnn_ros.ros.result_messages:detections_message",
            to_published="multi_dnn_ros.ros.detection_bytes:published_detections",
        ),
    ),
    draw=draw_boxes,
    has_labels=True,
    truth="boxes",
    score="multi_dnn_ros.training.metrics:score_detections",
    place=place_detections,
    agreement=compare_detections,
    merge=merge_detections,
)
