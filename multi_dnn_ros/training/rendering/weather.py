"""Effects between scene and image: glowing lamps, rain, snow, and the camera's defects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.canvas import Canvas

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Sensor:
    """blur: sigma in pixels. noise: sigma in grey levels. jpeg: quality, 0 = none. gain, gamma: parameters of the tone
    curve. tint: (r, g, b) factors of the white balance. vignette: darkening in the corners, 0..1.
    """

    blur: float
    noise: float
    jpeg: int
    gain: float
    gamma: float
    tint: tuple[float, float, float]
    vignette: float


@lru_cache(maxsize=1)
def _noise() -> npt.NDArray[np.int16]:
    """(1024, 1024) normal noise of sigma 64; each frame uses a window of it."""
    return (np.random.default_rng(515).standard_normal((1024, 1024)) * 64).astype(np.int16)


@lru_cache(maxsize=8)
def _corners(width: int, height: int, strength: float) -> Image:
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    dark = 255 * (1.0 - strength * np.clip((x**2 + y**2) / 2, 0, 1) ** 1.5)
    return np.repeat(dark.astype(np.uint8)[..., None], 3, axis=2)


def glow(canvas: Canvas, strength: float) -> None:
    """Add a halo around every lamp; strength 0..1."""
    if strength <= 0 or not canvas.lamps:
        return
    height, width = canvas.image.shape[:2]
    small = np.zeros((height // 4, width // 4, 3), np.uint8)
    for u, v, size, colour, number in canvas.lamps:
        if 0 <= u < width and 0 <= v < height and canvas.owner[int(v), int(u)] == number:  # not occluded
            radius = int(np.clip(size * 0.35 / 4 + 0.7, 1, 14))
            cv2.circle(small, (int(u / 4), int(v / 4)), radius, colour.tolist(), -1)
    wide = cv2.GaussianBlur(small, (0, 0), 5.0)
    halo = cv2.resize(cv2.addWeighted(small, 0.35, wide, 1.0, 0), (width, height), interpolation=cv2.INTER_LINEAR)
    cv2.addWeighted(canvas.image, 1.0, halo, strength, 0, dst=canvas.image)


def rain(image: Image, amount: float, rng: np.random.Generator) -> None:
    """Draw rain streaks; amount 0..1."""
    height, width = image.shape[:2]
    veil: Any = np.zeros((height, width), np.uint8)
    count = int(260 * amount * width / 640)
    slant = rng.normal(0.0, 0.12)
    start = rng.uniform((-20, -40), (width + 20, height), (count, 2))
    length = rng.uniform(0.02, 0.085, count) * height
    shade = rng.integers(40, 130, count)
    for (u, v), long, grey in zip(start.tolist(), length.tolist(), shade.tolist(), strict=True):
        end = (round((u + slant * long) * 16), round((v + long) * 16))
        cv2.line(veil, (round(u * 16), round(v * 16)), end, grey, 1, cv2.LINE_AA, 4)
    _lay(image, cv2.GaussianBlur(veil, (3, 5), 0))


def snow(image: Image, amount: float, rng: np.random.Generator) -> None:
    """Draw small distant and large near snowflakes; amount 0..1."""
    height, width = image.shape[:2]
    veil: Any = np.zeros((height, width), np.uint8)
    count = int(420 * amount * width / 640)
    centres = rng.uniform((0, 0), (width, height), (count, 2))
    radius = 0.6 + rng.exponential(0.9, count) * width / 640
    for (u, v), r in zip(centres.tolist(), radius.tolist(), strict=True):
        cv2.circle(veil, (round(u * 16), round(v * 16)), round(min(r, 5.0) * 16), 150, -1, cv2.LINE_AA, 4)
    _lay(image, cv2.GaussianBlur(veil, (5, 5), 0))


def _lay(image: Image, veil: Any) -> None:
    cv2.add(image, cv2.merge([veil] * 3), dst=image)


def expose(image: Image, sensor: Sensor, rng: np.random.Generator) -> Image:
    """The image as delivered by the camera: vignette, blur, tone, noise, compression."""
    height, width = image.shape[:2]
    picture: Any = image  # OpenCV's stubs lose the element type
    if sensor.vignette > 0:
        picture = cv2.multiply(picture, _corners(width, height, sensor.vignette), scale=1 / 255)
    if sensor.blur > 0.25:
        picture = cv2.GaussianBlur(picture, (0, 0), sensor.blur)
    ramp = (np.arange(256) / 255.0) ** sensor.gamma * 255.0 * sensor.gain
    curves = np.stack([np.clip(ramp * factor, 0, 255) for factor in sensor.tint], axis=1).astype(np.uint8)
    picture = cv2.LUT(picture, curves[None])
    if sensor.noise > 0.5:
        rows, columns = (int(rng.integers(0, max(1, 1024 - side))) for side in (min(height, 1023), min(width, 1023)))
        tile: Any = _noise()[rows : rows + height, columns : columns + width]
        if tile.shape != (height, width):
            tile = cv2.resize(_noise(), (width, height), interpolation=cv2.INTER_NEAREST)
        one: Any = 1
        grain = cv2.multiply(tile, one, scale=sensor.noise / 64.0)
        picture = cv2.add(picture, cv2.merge([grain] * 3), dtype=cv2.CV_8U)
    if sensor.jpeg > 0:
        _, coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, sensor.jpeg])
        picture = cv2.imdecode(coded, cv2.IMREAD_COLOR)
    return np.ascontiguousarray(picture, dtype=np.uint8)
