"""Pedestrians: articulated figures in a plane facing the camera, with a walking cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multi_dnn_ros.training.rendering.mesh import Colour, Mesh, MeshBuilder, one_of, toned, varied

_SKIN: tuple[Colour, ...] = ((232, 194, 168), (214, 168, 134), (176, 124, 92), (126, 84, 60), (88, 58, 44))
_CLOTH: tuple[Colour, ...] = (
    (34, 36, 44), (64, 66, 72), (118, 118, 122), (220, 218, 212), (172, 34, 38), (214, 96, 40), (226, 190, 60),
    (46, 104, 62), (38, 70, 140), (80, 130, 190), (110, 60, 120), (150, 110, 80), (210, 140, 160), (90, 84, 60),
)  # fmt: skip
_LEGS: tuple[Colour, ...] = (
    (30, 32, 40), (44, 56, 84), (66, 84, 118), (92, 84, 72), (150, 136, 110), (60, 60, 62), (110, 112, 116),
)  # fmt: skip
_HAIR: tuple[Colour, ...] = ((26, 22, 20), (60, 40, 26), (110, 80, 44), (168, 134, 80), (130, 128, 126))
_SHOES: Colour = (28, 26, 26)


@dataclass(frozen=True)
class Person:
    """Appearance of a person; `figure` poses it. Lengths in metres."""

    height: float
    girth: float
    skin: Colour
    top: Colour
    legs: Colour
    hair: Colour

    @classmethod
    def random(cls, rng: np.random.Generator) -> Person:
        child = rng.random() < 0.12
        height = float(rng.uniform(1.15, 1.45) if child else rng.normal(1.72, 0.08))
        girth = float(rng.uniform(0.9, 1.25))
        return cls(height, girth, *(varied(rng, one_of(rng, each), 12, 5) for each in (_SKIN, _CLOTH, _LEGS, _HAIR)))

    def figure(self, phase: float, stride: float, side_on: float) -> Mesh:
        """The figure at a point of its walking cycle.

        phase: radians. stride: 0 standing .. 1 brisk. side_on: -1..1, share of the walking direction in the image plane
        (0 = towards or away from the camera, the sign is left or right).
        """
        h, wide, depth = self.height, self.girth * self.height / 1.72, abs(side_on)
        swing = 0.55 * stride * np.sin(phase)
        shoulder, hip = wide * (0.235 - 0.085 * depth), wide * (0.135 - 0.05 * depth)
        m = MeshBuilder()
        bob = 0.015 * h * stride * abs(np.cos(phase))
        y_hip, y_shoulder = 0.5 * h + bob, 0.82 * h + bob
        # Far arm, legs, body, near arm, head: painted from the far side to the near side.
        self._arm(m, -1, shoulder, y_shoulder, swing, side_on, toned(self.top, 0.78))
        for leg in (-1.0, 1.0):
            turn, colour = leg * swing, toned(self.legs, 0.85 if leg < 0 else 1.0)
            bend = stride * 0.5 * max(0.0, -np.sin(phase) * np.sign(turn) + 0.2)
            parts = ((0.25 * h, turn, 0.085 * wide, 0.062 * wide), (0.25 * h, turn - bend, 0.062 * wide, 0.045 * wide))
            u, v = _limbs(m, leg * hip * 0.62, y_hip + 0.02 * h, parts, side_on, colour)
            toe = 0.13 * side_on
            m.panel(u - 0.055 + min(toe, 0), v - 0.03, u + 0.055 + max(toe, 0), v + 0.04, _SHOES)
        waist = y_hip + 0.05 * h
        m.polygon([(-hip, 0.46 * h), (hip, 0.46 * h), (hip, waist), (-hip, waist)], self.legs)
        belt, armpit = y_hip - 0.02 * h, y_shoulder - 0.03 * h
        m.polygon([(-hip * 1.06, belt), (hip * 1.06, belt), (shoulder, armpit), (0.8 * shoulder, y_shoulder),
                   (-0.8 * shoulder, y_shoulder), (-shoulder, armpit)], self.top)  # fmt: skip
        self._arm(m, 1, shoulder, y_shoulder, -swing, side_on, toned(self.top, 0.92))
        m.panel(-0.045, y_shoulder - 0.02, 0.045, 0.86 * h + bob + 0.02, self.skin)
        m.blob(0.015 * side_on, 0.93 * h + bob, 0.082 * (1 - 0.08 * depth), 0.07 * h, self.skin)
        m.blob(-0.02 * side_on, 0.962 * h + bob, 0.086, 0.038 * h, self.hair)
        return m.build()

    def _arm(
        self, m: MeshBuilder, side: int, shoulder: float, y: float, swing: float, side_on: float, colour: Colour
    ) -> None:
        h, x = self.height, side * shoulder * (1.0 - 0.25 * abs(side_on)) + side * 0.02
        parts = ((0.17 * h, swing, 0.05, 0.043), (0.15 * h, swing + 0.25, 0.043, 0.033))
        u, v = _limbs(m, x, y - 0.01 * h, parts, side_on, colour)
        m.blob(u, v - 0.02, 0.04, 0.05, self.skin)


def _limbs(
    m: MeshBuilder, x: float, y: float, parts: Sequence[tuple[float, float, float, float]], side_on: float,
    colour: Colour,
) -> tuple[float, float]:  # fmt: skip
    """A chain of limbs that hangs at (x, y); returns its end. parts: length, angle to the vertical, half the width at
    both ends.
    """
    for long, angle, wide_a, wide_b in parts:
        u, v = x + long * np.sin(angle) * side_on, max(0.03, y - long * np.cos(angle))
        nx, ny = np.array([y - v, u - x]) / max(float(np.hypot(u - x, v - y)), 1e-6)
        m.polygon([(x + nx * wide_a, y + ny * wide_a), (x - nx * wide_a, y - ny * wide_a),
                   (u - nx * wide_b, v - ny * wide_b), (u + nx * wide_b, v + ny * wide_b)], colour)  # fmt: skip
        x, y = u, v
    return x, y
