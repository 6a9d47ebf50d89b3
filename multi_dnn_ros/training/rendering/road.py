"""The road: its cross-section, its surface, its markings, and the exact lane truth."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.canvas import VISIBLE_CONTRAST, Canvas
from multi_dnn_ros.training.rendering.geometry import Colour, Points, RoadPath

Mask = npt.NDArray[np.uint8]

#: Lane lines are in the truth up to this distance, metres (less in fog).
LANE_TRUTH_M = 70.0
#: Width of a line in the lane truth at the horizon and at the bottom of the image, as a share of the image's width.
LANE_TRUTH_WIDTH = (2.0 / 320, 4.0 / 320)

_FAR_M = 230.0
_TILE = 256


class LaneLine(NamedTuple):
    """One marked line, `offset` metres right of the centre line. dash_m 0: solid. double: two thin lines side by side.
    wear: 0 fresh .. 1 gone.
    """

    offset: float
    colour: Colour
    width_m: float
    dash_m: float
    gap_m: float
    double: bool
    wear: float


class Strip(NamedTuple):
    """A band of ground along the road between two offsets, metres. grain: strength of its texture, 0..1."""

    left: float
    right: float
    colour: npt.ArrayLike
    grain: float


class RoadSection(NamedTuple):
    """The cross-section: strips in paint order over the terrain, the last of which is the road; lines from left to
    right; middles of the lanes by direction. wet: 0..1, how much the road mirrors the sky.
    """

    strips: tuple[Strip, ...]
    lines: tuple[LaneLine, ...]
    forward: tuple[float, ...]
    opposing: tuple[float, ...]
    terrain: Colour
    terrain_grain: float
    wet: float

    @property
    def left(self) -> float:
        return self.strips[-1].left

    @property
    def right(self) -> float:
        return self.strips[-1].right


@lru_cache(maxsize=1)
def _grain() -> Mask:
    """(256, 256) tileable noise around 128: fine grain on coarser blotches."""
    rng = np.random.default_rng(20260)
    total = np.zeros((_TILE, _TILE), np.float32)
    for cell, weight in ((1, 0.7), (3, 0.8), (12, 0.4), (48, 0.25)):
        noise = rng.standard_normal((_TILE // cell + 1, _TILE // cell + 1)).astype(np.float32)
        noise[-1, :], noise[:, -1] = noise[0, :], noise[:, 0]
        total += weight * cv2.resize(noise, (_TILE, _TILE), interpolation=cv2.INTER_LINEAR)
    total = total / total.std() * 34.0 + 128.0
    return np.asarray(np.clip(total, 0, 255), dtype=np.uint8)


def draw_ground(canvas: Canvas, path: RoadPath, section: RoadSection, travelled: float) -> None:
    """Terrain, strips and texture below the horizon. travelled: metres driven, so that the texture moves along."""
    camera, light = canvas.camera, canvas.light
    rows = np.arange(camera.height, dtype=np.float64)
    s = np.concatenate([np.geomspace(1.2, _FAR_M, 60), [2_000.0]])
    centre = path.at(s[:-1], 0.0)
    optical = camera.optical(centre)
    optical[:, 2] = np.maximum(optical[:, 2], 0.5)
    v = np.minimum.accumulate(camera.pixels(optical)[:, 1])
    top = int(np.clip(np.floor(min(v[-1], camera.horizon())), 0, camera.height - 2))
    distance = np.interp(rows[top:], v[::-1], s[:-1][::-1])
    above = rows[top:] < v[-1]
    distance[above] = 1_000.0
    ground = canvas.image[top:]
    ground[:] = light.flat(section.terrain, distance).astype(np.uint8)[:, None, :]
    amplitude = np.full(ground.shape[:2], int(255 * section.terrain_grain), np.uint8)
    reach = np.concatenate([[0.6], np.geomspace(1.5, _FAR_M, 40)])
    for strip in section.strips:
        edge = np.concatenate([path.at(reach, strip.left), path.at(reach[::-1], strip.right)])
        pixels = canvas.project(edge)
        if len(pixels) < 3:
            continue
        colours = light.flat(strip.colour, distance)
        if section.wet > 0.0:  # a wet road mirrors the sky at a flat angle
            mirror = section.wet * np.clip(distance / 60.0, 0.05, 0.65)[:, None]
            colours = colours * (1.0 - mirror) + light.fog * mirror * 0.9
        mask = np.zeros(ground.shape[:2], np.uint8)
        cv2.fillPoly(mask, [np.rint((pixels - (0, top)) * 16).astype(np.int32)], 255, cv2.LINE_8, 4)
        cv2.copyTo(np.broadcast_to(colours.astype(np.uint8)[:, None, :], ground.shape).copy(), mask, ground)
        amplitude[mask > 0] = int(255 * strip.grain)
    _texture(canvas, ground, amplitude, distance, travelled)


def _texture(canvas: Canvas, ground: Mask, amplitude: Mask, distance: Points, travelled: float) -> None:
    """Lay the grain on the ground in perspective; it fades where a pixel covers more than the grain's own size."""
    camera = canvas.camera
    far = distance.astype(np.float32)[:, None]
    across = (np.arange(camera.width, dtype=np.float32) - camera.width / 2)[None, :] * (far / camera.focal)
    along = np.broadcast_to(far + np.float32(travelled % (_TILE * 0.5)), across.shape)
    total = np.zeros(across.shape, np.int16)
    for metres, reach in ((0.04, 16.0), (0.5, 70.0)):
        tile = cv2.remap(_grain(), across / metres, along / metres, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        fade = np.clip(1.3 - distance / reach, 0.0, 1.0)[:, None]
        total += ((tile.astype(np.int16) - 128) * (fade * 24).astype(np.int16)) >> 5
    brightness = float(np.clip(canvas.light.ambient.mean(), 0.2, 1.0))
    grain = cv2.multiply(total, amplitude.astype(np.int16), scale=brightness / 255.0)
    cv2.add(ground, cv2.merge([grain] * 3), dst=ground, dtype=cv2.CV_8U)


def draw_markings(canvas: Canvas, path: RoadPath, section: RoadSection, travelled: float) -> None:
    """Paint the lane lines."""
    asphalt = np.asarray(section.strips[-1].colour)
    for line in section.lines:
        colour = np.asarray(line.colour) * (1.0 - line.wear) + asphalt * line.wear
        sides = (-0.8 * line.width_m, 0.8 * line.width_m) if line.double else (0.0,)
        for start, end in _pieces(line, travelled):
            shade = canvas.light.flat(colour, max(start, 1.0))[0]
            s = np.linspace(start, end, 3 if end - start < 8 else 7)
            for shift in sides:
                centre = line.offset + shift
                half = line.width_m * (0.42 if line.double else 0.5)
                edge = np.concatenate([path.at(s, centre - half), path.at(s[::-1], centre + half)])
                canvas.fill(canvas.project(edge), shade)


def _pieces(line: LaneLine, travelled: float) -> list[tuple[float, float]]:
    """The painted stretches ahead, (from, to) in metres from the camera, far ones first."""
    if line.dash_m <= 0.0:
        cuts = np.concatenate([[0.6], np.geomspace(3.0, 160.0, 14)])
        return [(float(a), float(b) * 1.01) for a, b in itertools.pairwise(cuts)][::-1]
    period = line.dash_m + line.gap_m
    first = -(travelled % period)
    starts = np.arange(first, 130.0, period)
    return [(max(float(a), 0.6), float(a) + line.dash_m) for a in starts if a + line.dash_m > 0.7][::-1]


def lane_truth(canvas: Canvas, path: RoadPath, section: RoadSection) -> Mask:
    """(H, W) uint8: every marked line, numbered from the left, drawn through the gaps between its dashes.

    A line ends LANE_TRUTH_M ahead, or where fog leaves less than VISIBLE_CONTRAST of it, and is cut out where an object
    stands in front of it. A line of which less than a twentieth of the image's width is inside the image is left out.
    Call it when everything is drawn.
    """
    camera = canvas.camera
    limit = min(LANE_TRUTH_M, -float(np.log(VISIBLE_CONTRAST)) * canvas.light.visibility_m)
    horizon = camera.horizon()
    mask = np.zeros((camera.height, camera.width), np.uint8)
    number = 0
    for line in section.lines:
        s = np.geomspace(0.8, max(limit, 5.0), 48)
        optical = camera.optical(path.at(s, line.offset))
        optical = optical[optical[:, 2] > 0.4]
        pixels = camera.pixels(optical)
        inside = np.all((pixels >= 0) & (pixels < (camera.width, camera.height)), axis=1)
        lengths = np.hypot(*np.diff(pixels, axis=0).T)
        if lengths[inside[:-1] & inside[1:]].sum() < 0.05 * camera.width:
            continue
        number += 1
        for (u0, v0), (u1, v1) in itertools.pairwise(pixels.tolist()):
            if max(abs(u0), abs(v0), abs(u1), abs(v1)) > 30_000:
                continue
            depth = min(max((0.5 * (v0 + v1) - horizon) / max(camera.height - horizon, 1.0), 0.0), 1.0)
            share = LANE_TRUTH_WIDTH[0] + (LANE_TRUTH_WIDTH[1] - LANE_TRUTH_WIDTH[0]) * depth
            begin, end = ((round(u * 16), round(v * 16)) for u, v in ((u0, v0), (u1, v1)))
            cv2.line(mask, begin, end, number, max(1, round(share * camera.width)), cv2.LINE_8, 4)
    mask[canvas.owner > 0] = 0
    present = np.flatnonzero(np.bincount(mask.ravel(), minlength=256)[1:]) + 1
    table = np.zeros(256, np.uint8)  # closes the gaps that wholly hidden lines leave in the numbers
    table[present] = np.arange(1, len(present) + 1)
    return np.asarray(cv2.LUT(mask, table), dtype=np.uint8)
