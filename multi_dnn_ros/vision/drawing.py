"""Draws results on their image. Does not import ROS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common import extensions
from multi_dnn_ros.vision.result_kind import Layer

log = logging.getLogger(__name__)

Color = tuple[int, int, int]

#: RGB; distinguishable with red-green colour blindness (palette of Okabe and Ito, 2008).
PALETTE: tuple[Color, ...] = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (240, 228, 66),
    (204, 121, 167),
    (213, 94, 0),
    (0, 114, 178),
)
#: Opacity of masks drawn over the image, 0..1.
_OPACITY = 0.45
_FONT = cv2.FONT_HERSHEY_SIMPLEX


@cache
def _log_once(text: str) -> None:
    log.warning("%s", text)


def draw(
    image: npt.NDArray[np.uint8], layers: Sequence[Layer], report: Callable[[str], object] = _log_once
) -> npt.NDArray[np.uint8]:
    """A copy of `image`, (H, W, 3) uint8 RGB, with the layers drawn on it and one line of text per DNN.

    Layers are drawn in the order of ResultKind.draw_order. If a kind's `draw` raises or calls sys.exit(), the other
    kinds are drawn, and `report` is called; by default it logs each text once: a video has thousands of frames.
    """
    canvas = image.copy()
    scale = max(0.35, min(canvas.shape[:2]) / 900)
    kinds = {layer.kind.name: layer.kind for layer in layers}
    for kind in sorted(kinds.values(), key=lambda kind: kind.draw_order):
        if kind.draw is None:
            continue
        own = [layer for layer in layers if layer.kind.name == kind.name]
        try:
            kind.draw(canvas, own, scale)
        except (Exception, SystemExit) as error:  # whatever a module of another package raises
            dnns = ", ".join(sorted({layer.dnn for layer in own}))
            what = extensions.display_name(extensions.RESULT_KINDS, kind.name)
            report(f"results of {dnns} were not drawn: {what}: draw raised {type(error).__name__}: {error}")
    _draw_latencies(canvas, sorted(layers, key=lambda layer: layer.dnn), scale)
    return canvas


def _draw_latencies(canvas: npt.NDArray[np.uint8], layers: Sequence[Layer], scale: float) -> None:
    """One line per DNN, bottom left, on a darkened background."""
    lines = [f"{layer.dnn}  {layer.latency_ms:.0f} ms" for layer in layers if layer.latency_ms is not None]
    if not lines:
        return
    font, pad = 0.9 * scale, max(3, round(8 * scale))
    sizes = [cv2.getTextSize(line, _FONT, font, 1) for line in lines]
    pitch = max(height + baseline for (_, height), baseline in sizes) + pad // 2
    width = max(width for (width, _), _ in sizes) + 2 * pad
    top = max(0, canvas.shape[0] - pitch * len(lines) - 2 * pad)
    background = canvas[top:, :width]
    background[...] = (background * 0.35).astype(np.uint8)
    for number, line in enumerate(lines):
        y = top + pad + pitch * (number + 1) - pad // 2
        cv2.putText(canvas, line, (pad, y), _FONT, font, (255, 255, 255), 1, cv2.LINE_AA)


def blend(
    canvas: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8], colors: npt.NDArray[np.float32], none: int
) -> None:
    """Mix the colours of a mask into canvas, (H, W, 3) uint8, in place.

    mask: (H, W) uint8; pixels with the value `none` stay unchanged. colors: (256, 3) RGB, by mask value. Raises
    ValueError if the sizes differ.
    """
    if mask.shape != canvas.shape[:2]:
        raise ValueError(f"mask has shape {mask.shape}; expected the shape of the image: {canvas.shape[:2]}")
    inside = mask != none
    mixed = canvas[inside] * (1 - _OPACITY) + colors[mask[inside]] * _OPACITY
    canvas[inside] = mixed.astype(np.uint8)


def line_width(scale: float) -> int:
    """Line width of a result in pixels."""
    return max(1, round(3 * scale))


def draw_tag(
    canvas: npt.NDArray[np.uint8], text: str, box: tuple[int, int, int, int], color: Color, scale: float
) -> None:
    """Write the text of a box, x1, y1, x2, y2 in pixels, above it, or inside if there is no room above, on `color`."""
    font, pad = 0.9 * scale, max(2, round(4 * scale))
    (width, height), baseline = cv2.getTextSize(text, _FONT, font, 1)
    width, height = width + 2 * pad, height + baseline + 2 * pad
    x = max(0, min(box[0], canvas.shape[1] - width))
    y = box[1] - height if box[1] >= height else max(0, box[1])
    cv2.rectangle(canvas, (x, y), (x + width - 1, y + height - 1), color, cv2.FILLED)
    is_dark = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 128
    front = (255, 255, 255) if is_dark else (0, 0, 0)
    cv2.putText(canvas, text, (x + pad, y + height - baseline - pad), _FONT, font, front, 1, cv2.LINE_AA)
