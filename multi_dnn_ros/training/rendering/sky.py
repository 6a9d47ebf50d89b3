"""What lies behind the road and before the lens: sky and hills; and the camera's defects."""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import Points
from multi_dnn_ros.training.rendering.canvas import Canvas

Image = npt.NDArray[np.uint8]


class Backdrop(NamedTuple):
    """zenith, horizon: (3,) RGB of the sky. cloud: (3,) RGB of clouds; cover: 0..1, how much they hide. ridges: colour,
    mean height and roughness in radians, and a seed for each range of hills, far ones first.
    """

    zenith: Points
    horizon: Points
    cloud: Points
    cover: float
    ridges: tuple[tuple[Points, float, float, int], ...]


def draw_backdrop(canvas: Canvas, backdrop: Backdrop, heading: float) -> None:
    """heading: viewing direction of the camera, radians, so that the backdrop stays in place when the road bends."""
    camera = canvas.camera
    bottom = int(np.clip(camera.horizon() + 0.14 * camera.height, 8, camera.height))
    height = np.clip((camera.horizon() - np.arange(bottom)) / camera.focal, 0.0, 1.0)  # tan(elevation)
    blend = np.clip(height / 0.55, 0, 1)[:, None] ** 0.6
    rows = backdrop.horizon * (1 - blend) + backdrop.zenith * blend
    alpha = np.clip((2.6 * backdrop.cover - 1.0) * 0.7, 0, 0.92) * np.clip(height * 9 + 0.2, 0, 1)[:, None]
    rows = rows + (backdrop.cloud - rows) * alpha
    canvas.image[:bottom] = np.clip(rows, 0, 255).astype(np.uint8)[:, None, :]
    _ridges(canvas, backdrop, heading)


def _ridges(canvas: Canvas, backdrop: Backdrop, heading: float) -> None:
    camera = canvas.camera
    u = np.linspace(-8, camera.width + 8, 60)
    azimuth = heading + (u - camera.width / 2) / camera.focal
    base = camera.horizon() + 0.06 * camera.height
    for colour, mean, rough, seed in backdrop.ridges:
        rng = np.random.default_rng(seed)
        height = np.full(len(u), mean)
        for k in range(1, 9):
            height += rough * rng.normal() / k * np.sin(azimuth * k * 4.3 + rng.uniform(0, 6.28))
        v = camera.horizon() - camera.focal * np.clip(height, 0.0, 0.3)
        outline = np.concatenate([np.stack([u, v], 1), [[camera.width + 8, base], [-8, base]]])
        canvas.fill(outline, colour)


class Sensor(NamedTuple):
    """blur: sigma in pixels. noise: sigma in grey levels. jpeg: quality, 0 = none. gamma, gains (r, g, b): of the tone
    curves.
    """

    blur: float
    noise: float
    jpeg: int
    gamma: float
    gains: Points


def expose(image: Image, sensor: Sensor, seed: int) -> Image:
    """The image as delivered by the camera: blur, tone, noise, compression. seed: of the noise."""
    picture: Any = image  # OpenCV's stubs lose the element type
    if sensor.blur > 0.25:
        picture = cv2.GaussianBlur(picture, (0, 0), sensor.blur)
    ramp = (np.arange(256) / 255.0) ** sensor.gamma * 255.0
    curves = np.stack([np.clip(ramp * gain, 0, 255) for gain in sensor.gains], axis=1).astype(np.uint8)
    picture = cv2.LUT(picture, curves[None])
    cv2.setRNGSeed(seed & 0x7FFFFFFF)
    grain = cv2.randn(np.zeros(image.shape[:2], np.int16), np.zeros(1), np.full(1, sensor.noise))
    picture = cv2.add(picture, cv2.merge([grain] * 3), dtype=cv2.CV_8U)
    if sensor.jpeg > 0:
        _, coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, sensor.jpeg])
        picture = cv2.imdecode(coded, cv2.IMREAD_COLOR)
    return np.ascontiguousarray(picture, dtype=np.uint8)
