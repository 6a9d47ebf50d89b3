"""The pixels where the robot can drive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multi_dnn_ros.vision.drawing import PALETTE, blend
from multi_dnn_ros.vision.placement import place_mask
from multi_dnn_ros.vision.result_kind import Image, Layer, ResultKind, Topic
from multi_dnn_ros.vision.results import NO_CLASS, Mask

#: Colours by class number, (256, 3): bluish green for all.
_COLORS = np.tile(np.array(PALETTE[2], np.float32), (NO_CLASS + 1, 1))


def draw_areas(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    """Colour the area. Areas of earlier frames are not drawn. ValueError: a mask has another size."""
    for layer in layers:
        if not layer.stale:
            blend(canvas, layer.output.pixels, _COLORS, NO_CLASS)


KIND = ResultKind(
    "drivable_area",
    Mask,
    (Topic("mask", "sensor_msgs/msg/Image", "multi_dnn_ros.ros.result_messages:area_mask_message", picture=True),),
    draw=draw_areas,
    draw_order=-1,
    place=place_mask,
)
