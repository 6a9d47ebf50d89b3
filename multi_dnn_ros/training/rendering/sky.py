"""What lies behind the road and before the lens: sky, clouds and hills; and the camera's defects."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import Points
from multi_dnn_ros.training.rendering.canvas import Canvas

Image = npt.NDArray[np.uint8]


class Backdrop(NamedTuple):
    """zenith, horizon: (3,) RGB of the sky. cloud: (3,) RGB; cover: 0..1. ridges: colour, mean height and roughness in
    radians, and a seed for each range of hills, far ones first. wind: radians per second.
    """

    zenith: Points
    horizon: Points
    cloud: Points
    cover: float
    ridges: tuple[tuple[Points, float, float, int], ...]
    wind: float


@lru_cache(maxsize=1)
def _clouds() -> npt.NDArray[np.float32]:
    """(128, 512) tileable cloud density, about normal."""
    rng = np.random.default_rng(7711)
    total = np.zeros((128, 512), np.float32)
    for cell, weight in ((64, 1.0), (32, 0.8), (16, 0.5), (8, 0.3), (4, 0.16)):
        noise = rng.standard_normal((128 // cell + 1, 512 // cell)).astype(np.float32)
        noise = np.concatenate([noise, noise[:, :1]], axis=1)
        total += weight * cv2.resize(noise, (512, 128), interpolation=cv2.INTER_CUBIC)
    return np.asarray(total / total.std(), dtype=np.float32)


def draw_backdrop(canvas: Canvas, backdrop: Backdrop, heading: float, seconds: float) -> None:
    """heading: viewing direction of the camera, radians, so that the backdrop stays in place when the road bends."""
    camera = canvas.camera
    bottom = int(np.clip(camera.horizon() + 0.14 * camera.height, 8, camera.height))
    small_h, small_w = max(bottom // 4, 2), camera.width // 4
    height = np.clip((camera.horizon() / 4 - np.arange(small_h)) / (camera.focal / 4), 0.0, 1.0)  # tan(elevation)
    blend = np.clip(height / 0.55, 0, 1)[:, None] ** 0.6
    rows = backdrop.horizon * (1 - blend) + backdrop.zenith * blend
    sky = np.broadcast_to(rows[:, None, :], (small_h, small_w, 3)).astype(np.float32)
    azimuth = heading + (np.arange(small_w) - small_w / 2) / (camera.focal / 4)
    if backdrop.cover > 0:
        u = ((azimuth[None, :] / 0.9 + backdrop.wind * seconds) / np.clip(height * 2.5 + 0.35, 0.2, 9)[:, None]) * 128
        v = np.broadcast_to((1.0 / (height + 0.22) * 24)[:, None], u.shape)
        across, up = (u % 512).astype(np.float32), (v % 127).astype(np.float32)
        density = cv2.remap(_clouds(), across, up, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        alpha = np.clip((density + 2.6 * backdrop.cover - 1.5) * 0.7, 0, 0.92)
        alpha *= np.clip(height * 9 + 0.2, 0, 1)[:, None]
        sky = sky + (backdrop.cloud.astype(np.float32) - sky) * alpha[..., None].astype(np.float32)
    image = cv2.resize(np.clip(sky, 0, 255).astype(np.uint8), (camera.width, bottom), interpolation=cv2.INTER_LINEAR)
    canvas.image[:bottom] = image
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
    cv2.setRNGSeed(seed)
    grain = cv2.randn(np.zeros(image.shape[:2], np.int16), np.zeros(1), np.full(1, sensor.noise))
    picture = cv2.add(picture, cv2.merge([grain] * 3), dtype=cv2.CV_8U)
    if sensor.jpeg > 0:
        _, coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, sensor.jpeg])
        picture = cv2.imdecode(coded, cv2.IMREAD_COLOR)
    return np.ascontiguousarray(picture, dtype=np.uint8)
