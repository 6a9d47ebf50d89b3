"""The class of each pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multi_dnn_ros.vision.drawing import PALETTE, blend
from multi_dnn_ros.vision.placement import place_mask
from multi_dnn_ros.vision.result_kind import Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import NO_CLASS, Mask

#: Colours by class number, (256, 3).
_COLORS = np.array([PALETTE[number % len(PALETTE)] for number in range(NO_CLASS + 1)], np.float32)


def draw_masks(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the pixels by class. Masks of earlier frames are not drawn. ValueError: a mask has another size."""
    for layer in layers:
        if not layer.stale:
            blend(canvas, layer.output.pixels, _COLORS, NO_CLASS)


KIND = ResultKind(
    "semantic_mask",
    Mask,
    (Topic("mask", "sensor_msgs/msg/Image", "multi_dnn_ros.ros.result_messages:class_mask_message", picture=True),),
    draw=draw_masks,
    draw_order=-2,
    has_labels=True,
    place=place_mask,
)
