"""Pedestrians: articulated figures in a plane facing the camera, with a walking cycle."""

from __future__ import annotations

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

_Place = tuple[float, float]


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
            bend = stride * 0.5 * max(0.0, -np.sin(phase) * np.sign(leg * swing) + 0.2)
            colour = toned(self.legs, 0.85 if leg < 0 else 1.0)
            self._leg(m, leg * hip * 0.62, y_hip, leg * swing, bend, side_on, wide, colour)
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

    def _leg(
        self, m: MeshBuilder, x: float, y: float, swing: float, bend: float, side_on: float, wide: float, colour: Colour
    ) -> None:
        h = self.height
        knee = (x + 0.26 * h * np.sin(swing) * side_on, y - 0.25 * h * np.cos(swing))
        u = knee[0] + 0.25 * h * np.sin(swing - bend) * side_on
        v = max(0.03, knee[1] - 0.25 * h * np.cos(swing - bend))
        _limb(m, (x, y + 0.03 * h), knee, 0.085 * wide, 0.062 * wide, colour)
        _limb(m, knee, (u, v), 0.062 * wide, 0.045 * wide, colour)
        toe = 0.13 * side_on
        m.panel(u - 0.055 + min(toe, 0), v - 0.03, u + 0.055 + max(toe, 0), v + 0.04, _SHOES)

    def _arm(
        self, m: MeshBuilder, side: int, shoulder: float, y: float, swing: float, side_on: float, colour: Colour
    ) -> None:
        h = self.height
        x = side * shoulder * (1.0 - 0.25 * abs(side_on))
        elbow = (x + side * 0.03 + 0.17 * h * np.sin(swing) * side_on, y - 0.17 * h * np.cos(swing))
        hand = (elbow[0] + 0.15 * h * np.sin(swing + 0.25) * side_on, elbow[1] - 0.15 * h * np.cos(swing))
        _limb(m, (x, y - 0.01 * h), elbow, 0.05, 0.043, colour)
        _limb(m, elbow, hand, 0.043, 0.033, colour)
        m.blob(hand[0], hand[1] - 0.02, 0.04, 0.05, self.skin)


def _limb(m: MeshBuilder, a: _Place, b: _Place, wide_a: float, wide_b: float, colour: Colour) -> None:
    """A quadrilateral from a to b, with half its width at both ends."""
    (ax, ay), (bx, by) = a, b
    long = max(float(np.hypot(bx - ax, by - ay)), 1e-6)
    nx, ny = -(by - ay) / long, (bx - ax) / long
    m.polygon([(ax + nx * wide_a, ay + ny * wide_a), (ax - nx * wide_a, ay - ny * wide_a),
               (bx - nx * wide_b, by - ny * wide_b), (bx + nx * wide_b, by + ny * wide_b)], colour)  # fmt: skip
