"""The result kind: one position in the image, drawn as a disc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2

from multi_dnn_ros.vision.result_kind import Image, Layer, ResultKind, Topic

MAGENTA = (255, 0, 255)


@dataclass(frozen=True)
class Spot:
    """u, v: pixels of the source image. score: 0..1."""

    u: float
    v: float
    score: float


def draw_spots(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
    for layer in layers:
        cv2.circle(canvas, (round(layer.output.u), round(layer.output.v)), 3, MAGENTA, cv2.FILLED)


KIND = ResultKind(
    "toy_kind",
    Spot,
    (Topic("spot", "geometry_msgs/msg/PointStamped", "toy_extension.messages:spot_message"),),
    draw=draw_spots,
)
