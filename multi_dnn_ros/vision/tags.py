"""Tags: texts that name boxes in an image, placed so that they do not cover each other. Does not import ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.drawing import FONT, Color


@dataclass(frozen=True)
class Tag:
    """A text for a box. box: x1, y1, x2, y2 in pixels. color: RGB, of the rectangle behind the text."""

    text: str
    box: tuple[int, int, int, int]
    color: Color


def draw_tags(canvas: npt.NDArray[np.uint8], tags: Sequence[Tag], scale: float) -> None:
    """Draw tags on canvas, (H, W, 3) uint8, in place, the most important first in `tags`.

    scale: of the text; 1 is for an image of 900 pixels.
    """
    font, pad = 0.9 * scale, max(2, round(4 * scale))
    measured = [cv2.getTextSize(tag.text, FONT, font, 1) for tag in tags]
    sizes = [(width + 2 * pad, height + baseline + 2 * pad) for (width, height), baseline in measured]
    corners = place_tags([tag.box for tag in tags], sizes, (canvas.shape[1], canvas.shape[0]))
    rows = list(zip(tags, sizes, measured, corners, strict=True))
    for tag, (width, height), (_, baseline), (x, y) in reversed(rows):
        cv2.rectangle(canvas, (x, y), (x + width - 1, y + height - 1), tag.color, cv2.FILLED)
        is_dark = 0.299 * tag.color[0] + 0.587 * tag.color[1] + 0.114 * tag.color[2] < 128
        color = (255, 255, 255) if is_dark else (0, 0, 0)
        cv2.putText(canvas, tag.text, (x + pad, y + height - baseline - pad), FONT, font, color, 1, cv2.LINE_AA)


def place_tags(
    boxes: Sequence[tuple[int, int, int, int]], sizes: Sequence[tuple[int, int]], image: tuple[int, int]
) -> list[tuple[int, int]]:
    """Upper left corners of tags: above its box if earlier tags leave room there, else beside, below or inside it.

    A tag for which no place is free is above its box, where it covers other tags. boxes: x1, y1, x2, y2. sizes, image:
    width, height. Tags are moved into the image as far as they fit.
    """
    taken = np.empty((len(boxes), 4), np.int64)  # x1, y1, x2, y2 of the tags placed so far
    for number, ((x1, y1, x2, y2), (width, height)) in enumerate(zip(boxes, sizes, strict=True)):
        size = np.array((width, height))
        corners = np.array(
            [
                (x1, y1 - height),
                (x2 - width, y1 - height),
                (x1, y2),
                (x2 - width, y2),
                (x2, y1),
                (x1 - width, y1),
                (x1, y1),
            ],
            np.int64,
        )
        corners = np.maximum(np.minimum(corners, np.subtract(image, size)), 0)
        ends = corners + size
        earlier = taken[:number]
        behind, before = corners[:, None] >= earlier[:, 2:], ends[:, None] <= earlier[:, :2]
        apart = (behind | before).any(axis=2)  # by candidate and earlier tag
        chosen = int(np.argmax(apart.all(axis=1)))  # 0 if no place is free
        taken[number] = *corners[chosen], *ends[chosen]
    return [(int(x), int(y)) for x, y in taken[:, :2]]
