"""The background: sky, clouds, sun, hills and a skyline, consistent when the camera turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import Points
from multi_dnn_ros.training.rendering.canvas import Canvas


@dataclass(frozen=True)
class Backdrop:
    """zenith, horizon: (3,) RGB of the sky. cloud: (3,) RGB; cover: 0..1. sun: azimuth and elevation in radians, or
    None. ridges: colour, mean height and roughness in radians, and a seed for each range of hills, far ones first.
    skyline: seed of a row of distant houses, or None. stars: night.
    """

    zenith: Points
    horizon: Points
    cloud: Points
    cover: float
    sun: tuple[float, float] | None
    ridges: tuple[tuple[Points, float, float, int], ...]
    skyline: int | None
    stars: bool
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
    if backdrop.sun is not None:
        du = (azimuth - backdrop.sun[0])[None, :]
        dv = (height - np.tan(backdrop.sun[1]))[:, None]
        halo = np.exp(-np.sqrt(du**2 + dv**2) / 0.16) * 120 + (du**2 + dv**2 < 0.0007) * 120
        sky = sky + halo[..., None].astype(np.float32) * np.array([1.0, 0.93, 0.78], np.float32)
    image = cv2.resize(np.clip(sky, 0, 255).astype(np.uint8), (camera.width, bottom), interpolation=cv2.INTER_LINEAR)
    canvas.image[:bottom] = image
    if backdrop.stars:
        rng = np.random.default_rng(99)
        for a, e in rng.uniform((-0.6, 0.08), (0.6, 0.6), (60, 2)).tolist():
            column = int(camera.width / 2 + camera.focal * (a - 0.3 * heading))
            row = int(camera.horizon() - camera.focal * e)
            if 0 <= column < camera.width and 0 <= row < bottom:
                canvas.image[row, column] = np.minimum(canvas.image[row, column].astype(np.int64) + 70, 255)
    _ridges(canvas, backdrop, heading)
    if backdrop.skyline is not None:
        _skyline(canvas, backdrop, heading)


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


def _skyline(canvas: Canvas, backdrop: Backdrop, heading: float) -> None:
    camera = canvas.camera
    base = camera.horizon() + 0.05 * camera.height
    rng = np.random.default_rng(backdrop.skyline)
    for _ in range(34):
        azimuth, wide, tall, shade = rng.uniform((-1.3, 0.012, 0.01, 0.75), (1.3, 0.05, 0.13, 1.0)).tolist()
        u0 = camera.width / 2 + camera.focal * (azimuth - heading)
        u1, v = u0 + camera.focal * wide, camera.horizon() - camera.focal * tall
        colour = backdrop.horizon * 0.62 * shade + 18
        canvas.fill(np.array([[u0, base], [u1, base], [u1, v], [u0, v]]), colour, convex=True)
