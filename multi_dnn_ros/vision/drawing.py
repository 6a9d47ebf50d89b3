"""Draws results over their image, for people to look at. No ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.results import Decoded, Detections, Lanes

Color = tuple[int, int, int]

#: Distinct also for red-green colour blindness (palette of Okabe and Ito, 2008), RGB.
PALETTE: tuple[Color, ...] = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (240, 228, 66),
    (204, 121, 167),
    (213, 94, 0),
    (0, 114, 178),
)
_LANE_OPACITY = 0.45
_FONT = cv2.FONT_HERSHEY_SIMPLEX


@dataclass(frozen=True)
class Layer:
    """What one DNN found. latency_ms: end to end; None: not shown. held: it is of an earlier frame and drawn thin."""

    dnn: str
    output: Decoded
    latency_ms: float | None = None
    held: bool = False


def draw(image: npt.NDArray[np.uint8], layers: Sequence[Layer]) -> npt.NDArray[np.uint8]:
    """A copy of `image`, (H, W, 3) uint8 RGB, with the layers on it: lanes below, boxes above, a line of text a DNN."""
    canvas = image.copy()
    scale = max(0.35, min(canvas.shape[:2]) / 900)
    ordered = sorted(layers, key=lambda layer: isinstance(layer.output, Detections))
    colors = _colors([layer.output for layer in ordered if isinstance(layer.output, Detections)])
    for layer in ordered:
        if isinstance(layer.output, Lanes):
            _draw_lanes(canvas, layer.output, layer.held, scale)
        else:
            _draw_boxes(canvas, layer.output, colors, layer.held, scale)
    _draw_latencies(canvas, sorted(layers, key=lambda layer: layer.dnn), scale)
    return canvas


def lane_color(number: int) -> Color:
    """The colour of lane line `number`, 1 for the leftmost."""
    return PALETTE[(number - 1) % len(PALETTE)]


def _colors(outputs: Sequence[Detections]) -> Mapping[str, Color]:
    """One colour a class name, the same from frame to frame, whichever of the classes are in it."""
    names = sorted({label for output in outputs for label in output.labels})
    return {name: PALETTE[(2 * number + 1) % len(PALETTE)] for number, name in enumerate(names)}


def _draw_lanes(canvas: npt.NDArray[np.uint8], lanes: Lanes, held: bool, scale: float) -> None:
    mask = lanes.mask
    if mask.shape != canvas.shape[:2]:
        raise ValueError(f"lane mask is {mask.shape}; the image needs {canvas.shape[:2]}")
    if not held and mask.any():
        table = np.zeros((256, 3), np.float32)
        for number in range(1, 256):
            table[number] = lane_color(number)
        inside = mask > 0
        mixed = canvas[inside] * (1 - _LANE_OPACITY) + table[mask[inside]] * _LANE_OPACITY
        canvas[inside] = mixed.astype(np.uint8)
    for lane in lanes.lanes:
        if len(lane.points) > 1:
            line = np.round(lane.points).astype(np.int32).reshape(-1, 1, 2)
            cv2.polylines(canvas, [line], False, lane_color(lane.number), _width(scale, held), cv2.LINE_AA)


def _draw_boxes(
    canvas: npt.NDArray[np.uint8], found: Detections, colors: Mapping[str, Color], held: bool, scale: float
) -> None:
    for box, score, class_id in zip(found.boxes[::-1], found.scores[::-1], found.class_ids[::-1], strict=True):
        label = found.labels[class_id] if 0 <= class_id < len(found.labels) else str(class_id)
        color = colors.get(label, PALETTE[int(class_id) % len(PALETTE)])
        x1, y1, x2, y2 = (round(float(value)) for value in box)
        cv2.rectangle(canvas, (x1, y1), (x2, y2), color, _width(scale, held), cv2.LINE_AA)
        if not held:
            _tag(canvas, f"{label} {score:.2f}", (x1, y1), color, scale)


def _tag(canvas: npt.NDArray[np.uint8], text: str, corner: tuple[int, int], color: Color, scale: float) -> None:
    """Text on a plate over the corner, moved inside where it would leave the image."""
    font = 0.9 * scale
    (width, height), baseline = cv2.getTextSize(text, _FONT, font, 1)
    pad = max(2, round(4 * scale))
    x = min(max(corner[0], 0), max(0, canvas.shape[1] - width - 2 * pad))
    bottom = max(corner[1], height + baseline + 2 * pad)
    cv2.rectangle(canvas, (x, bottom - height - baseline - 2 * pad), (x + width + 2 * pad, bottom), color, cv2.FILLED)
    dark = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 128
    ink = (255, 255, 255) if dark else (0, 0, 0)
    cv2.putText(canvas, text, (x + pad, bottom - baseline - pad), _FONT, font, ink, 1, cv2.LINE_AA)


def _draw_latencies(canvas: npt.NDArray[np.uint8], layers: Sequence[Layer], scale: float) -> None:
    """Bottom left, on a darkened plate, so that it can be read on any road."""
    lines = [f"{layer.dnn}  {layer.latency_ms:.0f} ms" for layer in layers if layer.latency_ms is not None]
    if not lines:
        return
    font, pad = 0.9 * scale, max(3, round(8 * scale))
    sizes = [cv2.getTextSize(line, _FONT, font, 1) for line in lines]
    pitch = max(height + baseline for (_, height), baseline in sizes) + pad // 2
    width = max(width for (width, _), _ in sizes) + 2 * pad
    top = max(0, canvas.shape[0] - pitch * len(lines) - 2 * pad)
    plate = canvas[top:, :width]
    plate[...] = (plate * 0.35).astype(np.uint8)
    for number, line in enumerate(lines):
        y = top + pad + pitch * (number + 1) - pad // 2
        cv2.putText(canvas, line, (pad, y), _FONT, font, (255, 255, 255), 1, cv2.LINE_AA)


def _width(scale: float, held: bool) -> int:
    return 1 if held else max(1, round(3 * scale))
