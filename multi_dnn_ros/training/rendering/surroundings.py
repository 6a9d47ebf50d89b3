"""Random conditions of a scene: road, light, weather, camera."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from multi_dnn_ros.training.rendering.light import Light
from multi_dnn_ros.training.rendering.mesh import Colour, one_of
from multi_dnn_ros.training.rendering.road import LaneLine, RoadSection, Strip
from multi_dnn_ros.training.rendering.sky import Backdrop
from multi_dnn_ros.training.rendering.weather import Sensor

STYLES = ("highway", "country", "suburb", "city")
TIMES = ("day", "dusk", "night")
WEATHERS = ("clear", "cloudy", "rain", "fog", "snow")


@dataclass(frozen=True)
class Conditions:
    """Conditions of a scene; see STYLES, TIMES and WEATHERS."""

    style: str
    time: str
    weather: str

    @classmethod
    def random(cls, rng: np.random.Generator) -> Conditions:
        return cls(
            style=STYLES[int(rng.choice(4, p=[0.28, 0.18, 0.24, 0.3]))],
            time=TIMES[int(rng.choice(3, p=[0.58, 0.2, 0.22]))],
            weather=WEATHERS[int(rng.choice(5, p=[0.42, 0.22, 0.15, 0.11, 0.1]))],
        )


_ASPHALTS: tuple[Colour, ...] = ((96, 96, 100), (74, 75, 80), (118, 116, 114))
_TERRAINS: tuple[Colour, ...] = ((104, 112, 62), (92, 104, 58), (160, 140, 96), (120, 104, 78), (84, 98, 66))
#: Numbers of lanes forward and opposing in suburbs and cities, with their probabilities.
_LANES, _LANES_P = ((1, 1), (2, 1), (2, 2), (3, 0), (2, 0)), (0.36, 0.14, 0.3, 0.08, 0.12)
#: Lengths of dashes and gaps, metres.
_HIGHWAY_DASHES, _DASHES = ((3.0, 9.0), (6.0, 12.0), (4.0, 8.0)), ((3.0, 6.0), (3.0, 3.0), (2.0, 4.0), (4.5, 4.5))


def _shade(rng: np.random.Generator, base: Colour, spread: float) -> Colour:
    """A lighter or darker colour than `base`, with a slight tint."""
    grey = rng.uniform(-spread, spread)
    r, g, b = np.clip(np.asarray(base) + grey + rng.uniform(-spread, spread, 3) * 0.3, 4, 250).tolist()
    return (r, g, b)


def road_section(rng: np.random.Generator, conditions: Conditions) -> RoadSection:
    """Lanes, lines, kerbs and ground colours."""
    style, snow = conditions.style, conditions.weather == "snow"
    width = float(rng.uniform(3.4, 3.8) if style == "highway" else rng.uniform(2.9, 3.5))
    if style == "highway":
        forward, opposing = int(rng.integers(2, 5)), 0
    elif style == "country":
        forward, opposing = 1, 1
    else:
        forward, opposing = _LANES[int(rng.choice(5, p=_LANES_P))]
    left, right = -opposing * width, forward * width
    lines = _lines(rng, style, width, forward, opposing)
    asphalt = np.array(_shade(rng, one_of(rng, _ASPHALTS), 12))
    if conditions.weather == "rain":
        asphalt = asphalt * (0.72, 0.72, 0.74)
    if snow:
        asphalt = asphalt * 0.55 + (70, 72, 75)
    terrain = _shade(rng, one_of(rng, _TERRAINS), 12)
    verge, pavement = _shade(rng, (142, 132, 116), 16), _shade(rng, (146, 144, 140), 16)
    if style == "city":
        terrain = _shade(rng, (122, 120, 116), 14)
    if snow:
        terrain, verge, pavement = (222.0, 226.0, 232.0), (206.0, 210.0, 214.0), _shade(rng, (196, 198, 202), 8)
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
    return RoadSection(
        strips, lines, tuple((k + 0.5) * width for k in range(forward)),
        tuple(-(k + 0.5) * width for k in range(opposing)), strips[-1].left, strips[-1].right, terrain,
        terrain_grain=0.35 if style == "city" or snow else 1.0,
        wet=float(rng.uniform(0.4, 1.0)) if conditions.weather == "rain" else 0.0,
    )  # fmt: skip


def _lines(rng: np.random.Generator, style: str, width: float, forward: int, opposing: int) -> tuple[LaneLine, ...]:
    white, yellow = _shade(rng, (232, 232, 228), 12), _shade(rng, (226, 178, 48), 12)
    american = rng.random() < 0.55
    wear = float(np.clip(rng.exponential(0.14), 0.0, 0.5))
    dashes = _HIGHWAY_DASHES if style == "highway" else _DASHES
    dash, gap = dashes[int(rng.integers(len(dashes)))]
    thin = float(rng.uniform(0.11, 0.17))
    wide = thin * float(rng.uniform(1.0, 1.6))
    edged = style in ("highway", "country") or rng.random() < 0.5
    lines: list[LaneLine] = []

    def add(offset: float, colour: Colour, broad: float, dashed: bool, double: bool = False) -> None:
        worn = float(np.clip(wear + rng.normal(0, 0.05), 0.0, 0.55))
        lines.append(LaneLine(offset, colour, broad, dash if dashed else 0.0, gap if dashed else 0.0, double, worn))

    if opposing and edged:
        add(-opposing * width, white, wide, False)
    for k in range(opposing - 1, 0, -1):
        add(-k * width, white, thin, True)
    if opposing:
        kind = rng.random()
        middle = yellow if american else white
        add(0.0, middle, thin, dashed=kind < 0.35, double=kind > 0.7)
    else:
        add(0.0, yellow if american else white, wide, False)
    for k in range(1, forward):
        add(k * width, white, thin, True)
    if edged or not opposing:
        add(forward * width, white, wide, False)
    return tuple(lines)


def light_and_sky(rng: np.random.Generator, conditions: Conditions) -> tuple[Light, Backdrop]:
    """The light for time and weather, and the matching sky."""
    time, weather = conditions.time, conditions.weather
    dull = {"clear": 0.0, "cloudy": 0.55, "rain": 0.85, "fog": 0.9, "snow": 0.8}[weather]
    warm = rng.uniform(0.3, 1.0)
    if time == "day":
        zenith, low = np.array([72.0, 122.0, 190.0]), np.array([190.0, 212.0, 228.0])
        ambient, grey, beam = np.array([1.0, 0.99, 0.96]) * rng.uniform(0.88, 1.05), 196.0, 0.0
    elif time == "dusk":
        zenith, low = np.array([66.0, 82.0, 128.0]), np.array([236.0, 172.0, 120.0]) * (0.75 + 0.25 * warm)
        ambient, grey, beam = np.array([0.68, 0.6, 0.58]) * rng.uniform(0.85, 1.1), 122.0, float(rng.uniform(0.0, 0.3))
    else:
        zenith, low = np.array([9.0, 12.0, 24.0]), np.array([34.0, 38.0, 54.0])
        street = conditions.style in ("suburb", "city")
        ambient = np.array([0.34, 0.31, 0.29]) * rng.uniform(0.9, 1.25) if street else np.array([0.21, 0.22, 0.26])
        grey, beam = 34.0, float(rng.uniform(0.55, 0.8))
    overcast = np.array([1.0, 1.01, 1.03]) * grey * rng.uniform(0.88, 1.08)
    zenith, low = zenith * (1 - dull) + overcast * 0.92 * dull, low * (1 - dull) + overcast * dull
    ambient = ambient * (1.0 - 0.2 * dull)
    visibility = {
        "clear": rng.uniform(500, 1500), "cloudy": rng.uniform(350, 900), "rain": rng.uniform(110, 260),
        "fog": rng.uniform(38, 95), "snow": rng.uniform(80, 200),
    }[weather]  # fmt: skip
    azimuth = float(rng.uniform(-np.pi, np.pi))
    elevation = float(rng.uniform(0.3, 0.9) if time == "day" else rng.uniform(0.04, 0.2))
    sun = np.array([np.sin(azimuth) * np.cos(elevation), np.sin(elevation), np.cos(azimuth) * np.cos(elevation)])
    light = Light(
        ambient=ambient, sun=sun, contrast=0.5 - 0.32 * dull if time != "night" else 0.25, fog=low,
        visibility_m=float(visibility), beam=beam, shadow=float((0.5 if time == "day" else 0.32) * (1 - 0.45 * dull)),
    )  # fmt: skip
    green = np.array([70.0, 92.0, 66.0]) if weather != "snow" else np.array([176.0, 184.0, 192.0])
    ridges = tuple(
        (np.clip((green * float(ambient.mean()) * (1 - haze) + low * haze), 0, 255), float(tall), float(rough),
         int(rng.integers(1 << 30)))
        for haze, tall, rough in (
            (0.7, rng.uniform(0.02, 0.075), rng.uniform(0.004, 0.014)),
            (0.35 + 0.5 * (dull > 0.8), rng.uniform(0.004, 0.04), rng.uniform(0.002, 0.01)),
        )
    )  # fmt: skip
    backdrop = Backdrop(
        zenith=zenith, horizon=low, cloud=np.clip(overcast * (1.22 - 0.3 * dull), 0, 255),
        cover={"clear": rng.uniform(0.0, 0.5), "cloudy": rng.uniform(0.55, 0.9)}.get(weather, 0.8),
        sun=(azimuth, elevation) if weather == "clear" and time != "night" and abs(azimuth) < 0.8 else None,
        ridges=ridges, skyline=int(rng.integers(1 << 30)) if conditions.style == "city" and weather != "fog" else None,
        stars=time == "night" and weather == "clear", wind=float(rng.uniform(0.0, 0.004)),
    )  # fmt: skip
    return light, backdrop


def sensor(rng: np.random.Generator, conditions: Conditions, width: int) -> Sensor:
    """The camera's defects."""
    dark = {"day": 1.0, "dusk": 1.6, "night": 2.4}[conditions.time]
    return Sensor(
        blur=float(rng.uniform(0.0, 1.0)) * width / 640,
        noise=float(rng.uniform(0.5, 4.0)) * dark,
        jpeg=int(rng.integers(45, 96)) if rng.random() < 0.6 else 0,
        gain=float(rng.uniform(0.88, 1.14)),
        gamma=float(rng.uniform(0.85, 1.18)),
        tint=(float(rng.uniform(0.93, 1.07)), 1.0, float(rng.uniform(0.93, 1.07))),
        vignette=float(rng.uniform(0.0, 0.35)),
    )
