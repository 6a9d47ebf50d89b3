"""Random conditions of a scene - road, light, weather, camera - and what lies behind the road and before the lens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.canvas import Canvas, Light
from multi_dnn_ros.training.rendering.geometry import Colour, Points, one_of
from multi_dnn_ros.training.rendering.road import LaneLine, RoadSection, Strip

Image = npt.NDArray[np.uint8]


def _draw_backdrop(
    zenith: Points, horizon: Points, cloud: Points, cover: float, ridges: list[tuple[Points, float, float, int]],
    canvas: Canvas, heading: float,
) -> None:  # fmt: skip
    """Sky and hills. zenith, horizon, cloud: (3,) RGB. cover: 0..1, how much clouds hide. ridges: colour, mean height
    and roughness in radians, and a seed for each range of hills, far ones first. heading: viewing direction of the
    camera, radians, so that they stay in place when the road bends.
    """
    camera = canvas.camera
    bottom = int(np.clip(camera.horizon() + 0.14 * camera.height, 8, camera.height))
    height = np.clip((camera.horizon() - np.arange(bottom)) / camera.focal, 0.0, 1.0)  # tan(elevation)
    blend = np.clip(height / 0.55, 0, 1)[:, None] ** 0.6
    rows = horizon * (1 - blend) + zenith * blend
    alpha = np.clip((2.6 * cover - 1.0) * 0.7, 0, 0.92) * np.clip(height * 9 + 0.2, 0, 1)[:, None]
    rows = rows + (cloud - rows) * alpha
    canvas.image[:bottom] = np.clip(rows, 0, 255).astype(np.uint8)[:, None, :]
    u = np.linspace(-8, camera.width + 8, 60)
    azimuth = heading + (u - camera.width / 2) / camera.focal
    base = camera.horizon() + 0.06 * camera.height
    for colour, mean, rough, seed in ridges:
        rng = np.random.default_rng(seed)
        height = np.full(len(u), mean)
        for k in range(1, 9):
            height += rough * rng.normal() / k * np.sin(azimuth * k * 4.3 + rng.uniform(0, 6.28))
        v = camera.horizon() - camera.focal * np.clip(height, 0.0, 0.3)
        outline = np.concatenate([np.stack([u, v], 1), [[camera.width + 8, base], [-8, base]]])
        canvas.fill(outline, colour)


STYLES = ("highway", "country", "suburb", "city")
TIMES = ("day", "dusk", "night")
WEATHERS = ("clear", "cloudy", "rain", "fog", "haze")

_ASPHALTS: tuple[Colour, ...] = ((96, 96, 100), (74, 75, 80), (118, 116, 114))
_TERRAINS: tuple[Colour, ...] = ((104, 112, 62), (92, 104, 58), (160, 140, 96), (120, 104, 78), (84, 98, 66))
#: Numbers of lanes forward and opposing in suburbs and cities, with their probabilities.
_LANES, _LANES_P = ((1, 1), (2, 1), (2, 2), (3, 0), (2, 0)), (0.36, 0.14, 0.3, 0.08, 0.12)
#: Lengths of dashes and gaps, metres.
_HIGHWAY_DASHES, _DASHES = ((3.0, 9.0), (6.0, 12.0), (4.0, 8.0)), ((3.0, 6.0), (3.0, 3.0), (2.0, 4.0), (4.5, 4.5))
#: By weather: how much clouds and mist take of the sun, 0..1, and the visibility, metres.
_DULL = {"clear": 0.0, "cloudy": 0.55, "rain": 0.85, "fog": 0.9, "haze": 0.8}
_VISIBILITY = ((500, 350, 110, 38, 80), (1500, 900, 260, 95, 200))


class Conditions(NamedTuple):
    """Conditions of a scene; see STYLES, TIMES and WEATHERS."""

    style: str
    time: str
    weather: str

    @classmethod
    def random(cls, rng: np.random.Generator) -> Conditions:
        style = STYLES[int(rng.choice(4, p=[0.28, 0.18, 0.24, 0.3]))]
        time = TIMES[int(rng.choice(3, p=[0.58, 0.2, 0.22]))]
        return cls(style, time, WEATHERS[int(rng.choice(5, p=[0.42, 0.22, 0.15, 0.11, 0.1]))])


def _shade(rng: np.random.Generator, base: Colour, spread: float) -> Colour:
    """A lighter or darker colour than `base`, with a slight tint."""
    grey = rng.uniform(-spread, spread)
    r, g, b = np.clip(np.asarray(base) + grey + rng.uniform(-spread, spread, 3) * 0.3, 4, 250).tolist()
    return (r, g, b)


def road_section(rng: np.random.Generator, conditions: Conditions) -> RoadSection:
    """Lanes, lines, kerbs and ground colours."""
    style, rain = conditions.style, conditions.weather == "rain"
    width = float(rng.uniform(3.4, 3.8) if style == "highway" else rng.uniform(2.9, 3.5))
    if style == "highway":
        forward, opposing = int(rng.integers(2, 5)), 0
    else:
        forward, opposing = (1, 1) if style == "country" else _LANES[int(rng.choice(5, p=_LANES_P))]
    left, right = -opposing * width, forward * width
    lines = _lines(rng, style, width, forward, opposing)
    asphalt = np.array(_shade(rng, one_of(rng, _ASPHALTS), 12)) * (0.72 if rain else 1.0)
    terrain = _shade(rng, one_of(rng, _TERRAINS), 12)
    verge, pavement = _shade(rng, (142, 132, 116), 16), _shade(rng, (146, 144, 140), 16)
    if style == "city":
        terrain = _shade(rng, (122, 120, 116), 14)
    if style in ("suburb", "city"):
        bay = float(rng.uniform(2.0, 2.3)) if style == "city" and rng.random() < 0.65 else 0.35
        path = float(rng.uniform(2.2, 3.6))
        strips: tuple[Strip, ...] = (
            Strip(left - 0.5 - path, right + bay + 0.15 + path, pavement, 0.35),
            Strip(left - 0.5, right + bay + 0.15, _shade(rng, (168, 166, 160), 10), 0.3),
            Strip(left - 0.35, right + bay, asphalt, 0.3),
        )
    else:
        hard, soft = float(rng.uniform(0.3, 2.6)), float(rng.uniform(0.3, 2.0))
        strips = (
            Strip(left - 0.6 - soft, right + hard + soft, verge, 0.9),
            Strip(left - 0.6, right + hard, asphalt, 0.3),
        )
    wet = float(rng.uniform(0.4, 1.0)) if rain else 0.0
    ahead = tuple((k + 0.5) * width for k in range(forward))
    against = tuple(-(k + 0.5) * width for k in range(opposing))
    return RoadSection(strips, lines, ahead, against, terrain, 0.35 if style == "city" else 1.0, wet)


def _lines(rng: np.random.Generator, style: str, width: float, forward: int, opposing: int) -> tuple[LaneLine, ...]:
    white, yellow = _shade(rng, (232, 232, 228), 12), _shade(rng, (226, 178, 48), 12)
    middle = yellow if rng.random() < 0.55 else white
    wear = float(np.clip(rng.exponential(0.14), 0.0, 0.5))
    dashes = _HIGHWAY_DASHES if style == "highway" else _DASHES
    dash = dashes[int(rng.integers(len(dashes)))]
    thin = float(rng.uniform(0.11, 0.17))
    wide = thin * float(rng.uniform(1.0, 1.6))
    edged = style in ("highway", "country") or rng.random() < 0.5
    lines: list[LaneLine] = []

    def add(lane: int, colour: Colour, broad: float, dashed: bool, double: bool = False) -> None:
        worn = float(np.clip(wear + rng.normal(0, 0.05), 0.0, 0.55))
        lines.append(LaneLine(lane * width, colour, broad, *(dash if dashed else (0.0, 0.0)), double, worn))

    if opposing and edged:
        add(-opposing, white, wide, False)
    for k in range(1 - opposing, 0):
        add(k, white, thin, True)
    if opposing:
        kind = rng.random()
        add(0, middle, thin, dashed=kind < 0.35, double=kind > 0.7)
    else:
        add(0, middle, wide, False)
    for k in range(1, forward):
        add(k, white, thin, True)
    if edged or not opposing:
        add(forward, white, wide, False)
    return tuple(lines)


def light_and_sky(rng: np.random.Generator, conditions: Conditions) -> tuple[Light, Callable[[Canvas, float], None]]:
    """The light for time and weather, and a function that draws the matching sky for a heading, radians."""
    time, weather = conditions.time, conditions.weather
    dull, warm, beam = _DULL[weather], rng.uniform(0.3, 1.0), 0.0
    if time == "day":
        zenith, low, grey = np.array([72.0, 122.0, 190.0]), np.array([190.0, 212.0, 228.0]), 196.0
        ambient = np.array([1.0, 0.99, 0.96]) * rng.uniform(0.88, 1.05)
    elif time == "dusk":
        zenith, low = np.array([66.0, 82.0, 128.0]), np.array([236.0, 172.0, 120.0]) * (0.75 + 0.25 * warm)
        ambient, grey, beam = np.array([0.68, 0.6, 0.58]) * rng.uniform(0.85, 1.1), 122.0, float(rng.uniform(0.0, 0.3))
    else:
        zenith, low, grey = np.array([9.0, 12.0, 24.0]), np.array([34.0, 38.0, 54.0]), 34.0
        street = conditions.style in ("suburb", "city")
        ambient = np.array([0.34, 0.31, 0.29]) * rng.uniform(0.9, 1.25) if street else np.array([0.21, 0.22, 0.26])
        beam = float(rng.uniform(0.55, 0.8))
    overcast = np.array([1.0, 1.01, 1.03]) * grey * rng.uniform(0.88, 1.08)
    zenith, low = zenith * (1 - dull) + overcast * 0.92 * dull, low * (1 - dull) + overcast * dull
    ambient = ambient * (1.0 - 0.2 * dull)
    visibility = float(rng.uniform(*_VISIBILITY)[WEATHERS.index(weather)])
    azimuth = float(rng.uniform(-np.pi, np.pi))
    elevation = float(rng.uniform(0.3, 0.9) if time == "day" else rng.uniform(0.04, 0.2))
    sun = np.array([np.sin(azimuth) * np.cos(elevation), np.sin(elevation), np.cos(azimuth) * np.cos(elevation)])
    light = Light(ambient, sun, 0.5 - 0.32 * dull if time != "night" else 0.25, low, visibility, beam)
    outlines = [(0.7, *rng.uniform((0.02, 0.004), (0.075, 0.014))), (0.35 + 0.5 * (dull > 0.8),
                *rng.uniform((0.004, 0.002), (0.04, 0.01)))]  # fmt: skip
    green = np.array([70.0, 92.0, 66.0]) * float(ambient.mean())
    ridges = [
        (np.clip(green * (1 - haze) + low * haze, 0, 255), tall, rough, int(rng.integers(1 << 30)))
        for haze, tall, rough in outlines
    ]
    few, many, most = rng.uniform((0.0, 0.55, 0.75), (0.5, 0.9, 0.85))
    cover = float({"clear": few, "cloudy": many}.get(weather, most))
    cloud = np.clip(overcast * (1.22 - 0.3 * dull), 0, 255)
    return light, partial(_draw_backdrop, zenith, low, cloud, cover, ridges)


def sensor(rng: np.random.Generator, conditions: Conditions, width: int) -> Callable[[Image, int], Image]:
    """A function of an image and a seed for the noise that returns the image as the camera delivers it: with blur, tone
    curves, noise and compression.
    """
    dark = {"day": 1.0, "dusk": 1.6, "night": 2.4}[conditions.time]
    blur, noise = float(rng.uniform(0.0, 1.0)) * width / 640, float(rng.uniform(0.5, 4.0)) * dark
    jpeg = int(rng.integers(45, 96)) if rng.random() < 0.6 else 0
    gain, gamma, *tint = rng.uniform((0.88, 0.85, 0.93, 0.93, 0.93), (1.14, 1.18, 1.07, 1.07, 1.07))
    ramp = (np.arange(256)[:, None] / 255.0) ** gamma * 255.0
    curves = np.clip(ramp * (gain * np.array(tint)), 0, 255).astype(np.uint8)

    def expose(image: Image, seed: int) -> Image:
        picture: Any = image  # OpenCV's stubs lose the element type
        if blur > 0.25:
            picture = cv2.GaussianBlur(picture, (0, 0), blur)
        picture = cv2.LUT(picture, curves[None])
        cv2.setRNGSeed(seed & 0x7FFFFFFF)
        grain = cv2.randn(np.zeros(image.shape[:2], np.int16), np.zeros(1), np.full(1, noise))
        picture = cv2.add(picture, cv2.merge([grain] * 3), dtype=cv2.CV_8U)
        if jpeg > 0:
            _, coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, jpeg])
            picture = cv2.imdecode(coded, cv2.IMREAD_COLOR)
        return np.ascontiguousarray(picture, dtype=np.uint8)

    return expose
