"""Pedestrians: articulated figures in a plane facing the camera, with a walking cycle, clothes, hair and bags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from multi_dnn_ros.training.rendering.mesh import Colour, Mesh, MeshBuilder

_SKIN: tuple[Colour, ...] = ((232, 194, 168), (214, 168, 134), (176, 124, 92), (126, 84, 60), (88, 58, 44))
_CLOTH: tuple[Colour, ...] = (
    (34, 36, 44), (64, 66, 72), (118, 118, 122), (220, 218, 212), (172, 34, 38), (214, 96, 40), (226, 190, 60),
    (46, 104, 62), (38, 70, 140), (80, 130, 190), (110, 60, 120), (150, 110, 80), (210, 140, 160), (90, 84, 60),
)  # fmt: skip
_LEGS: tuple[Colour, ...] = (
    (30, 32, 40), (44, 56, 84), (66, 84, 118), (92, 84, 72), (150, 136, 110), (60, 60, 62), (110, 112, 116),
)  # fmt: skip
_HAIR: tuple[Colour, ...] = ((26, 22, 20), (60, 40, 26), (110, 80, 44), (168, 134, 80), (130, 128, 126))


@dataclass(frozen=True)
class Person:
    """Appearance of a person; `figure` poses it. Lengths in metres."""

    height: float
    girth: float
    skin: Colour
    top: Colour
    legs: Colour
    hair: Colour
    long_hair: bool
    skirt: bool
    coat: bool
    bag: int
    bag_colour: Colour

    @classmethod
    def random(cls, rng: np.random.Generator) -> Person:
        def pick(colours: tuple[Colour, ...]) -> Colour:
            base = np.asarray(colours[int(rng.integers(len(colours)))]) + rng.uniform(-12, 12, 3)
            r, g, b = np.clip(base, 5, 250).tolist()
            return (r, g, b)

        child = rng.random() < 0.12
        return cls(
            height=float(rng.uniform(1.15, 1.45) if child else rng.normal(1.72, 0.08)),
            girth=float(rng.uniform(0.9, 1.25)),
            skin=pick(_SKIN),
            top=pick(_CLOTH),
            legs=pick(_LEGS),
            hair=pick(_HAIR),
            long_hair=bool(rng.random() < 0.35),
            skirt=bool(rng.random() < 0.15),
            coat=bool(rng.random() < 0.2),
            bag=int(rng.choice(4, p=[0.55, 0.2, 0.15, 0.1])),
            bag_colour=pick(_CLOTH),
        )

    def figure(self, phase: float, stride: float, side_on: float) -> Mesh:
        """The figure at a point of its walking cycle.

        phase: radians. stride: 0 standing .. 1 brisk. side_on: -1..1, share of the walking direction in the image plane
        (0 = towards or away from the camera, the sign is left or right).
        """
        h, wide = self.height, self.girth * self.height / 1.72
        swing = 0.55 * stride * np.sin(phase)
        depth = abs(side_on)
        shoulder = wide * (0.235 - 0.085 * depth)
        hip = wide * (0.135 - 0.05 * depth)
        m = MeshBuilder()
        bob = 0.015 * h * stride * abs(np.cos(phase))
        y_hip, y_shoulder, y_neck = 0.5 * h + bob, 0.82 * h + bob, 0.86 * h + bob
        dark = _tone(self.top, 0.78)
        # Far arm, legs, body, near arm, head: painted from the far side to the near side.
        self._arm(m, -1, shoulder, y_shoulder, swing, side_on, dark)
        for leg, sign in ((-1, -1.0), (1, 1.0)):
            self._leg(
                m, leg * hip * 0.62, y_hip, sign * swing, side_on, wide, phase, stride, shade=0.85 if leg < 0 else 1.0
            )
        if self.bag == 1:  # a rucksack: behind when seen from the side, hidden or in the middle otherwise
            m.blob(-side_on * 0.17 * wide, 0.7 * h + bob, 0.12 * wide + 0.03, 0.16 * h, self.bag_colour)
        low = 0.27 * h if self.skirt or self.coat else 0.46 * h
        flare = 1.35 if self.skirt or self.coat else 1.0
        lower_colour = self.top if self.coat else self.legs
        self._quad(
            m,
            [(-hip * flare, low), (hip * flare, low), (hip, y_hip + 0.05 * h), (-hip, y_hip + 0.05 * h)],
            lower_colour,
        )
        self._quad(
            m,
            [(-hip * 1.06, y_hip - 0.02 * h), (hip * 1.06, y_hip - 0.02 * h), (shoulder, y_shoulder - 0.03 * h),
             (0.8 * shoulder, y_shoulder), (-0.8 * shoulder, y_shoulder), (-shoulder, y_shoulder - 0.03 * h)],
            self.top,
        )  # fmt: skip
        self._arm(m, 1, shoulder, y_shoulder, -swing, side_on, _tone(self.top, 0.92))
        if self.bag == 2:  # a shopping bag in one hand
            x = shoulder * 1.15 + side_on * swing * -0.3
            self._quad(
                m, [(x - 0.11, 0.2 * h), (x + 0.11, 0.2 * h), (x + 0.09, 0.4 * h), (x - 0.09, 0.4 * h)], self.bag_colour
            )
        self._quad(
            m,
            [(-0.045, y_shoulder - 0.02), (0.045, y_shoulder - 0.02), (0.045, y_neck + 0.02), (-0.045, y_neck + 0.02)],
            self.skin,
        )
        if self.long_hair:
            m.blob(-0.02 * side_on, 0.905 * h + bob, 0.1, 0.105, self.hair)
        m.blob(0.015 * side_on, 0.93 * h + bob, 0.082 * (1 - 0.08 * depth), 0.07 * h, self.skin)
        m.blob(-0.02 * side_on, 0.962 * h + bob, 0.086, 0.038 * h, self.hair)
        return m.build()

    @staticmethod
    def _quad(m: MeshBuilder, corners: list[tuple[float, float]], colour: Colour) -> None:
        m.polygon([(x, y, 0.0) for x, y in corners], colour)

    def _limb(
        self, m: MeshBuilder, a: tuple[float, float], b: tuple[float, float], wa: float, wb: float, colour: Colour
    ) -> None:
        (ax, ay), (bx, by) = a, b
        long = max(float(np.hypot(bx - ax, by - ay)), 1e-6)
        nx, ny = -(by - ay) / long, (bx - ax) / long
        self._quad(
            m,
            [
                (ax + nx * wa, ay + ny * wa),
                (ax - nx * wa, ay - ny * wa),
                (bx - nx * wb, by - ny * wb),
                (bx + nx * wb, by + ny * wb),
            ],
            colour,
        )

    def _leg(
        self, m: MeshBuilder, x: float, y: float, swing: float, side_on: float, wide: float, phase: float,
        stride: float, *, shade: float,
    ) -> None:  # fmt: skip
        h = self.height
        knee = (x + 0.26 * h * np.sin(swing) * side_on, y - 0.25 * h * np.cos(swing))
        bend = stride * 0.5 * max(0.0, -np.sin(phase) * np.sign(swing) + 0.2)
        foot = (
            knee[0] + 0.25 * h * np.sin(swing - bend) * side_on,
            max(0.03, knee[1] - 0.25 * h * np.cos(swing - bend)),
        )
        colour = _tone(self.skin if self.skirt else self.legs, shade)
        self._limb(m, (x, y + 0.03 * h), knee, 0.085 * wide, 0.062 * wide, colour)
        self._limb(m, knee, foot, 0.062 * wide, 0.045 * wide, colour)
        toe = 0.13 * side_on
        self._quad(
            m,
            [(foot[0] - 0.055 + min(toe, 0), foot[1] - 0.03), (foot[0] + 0.055 + max(toe, 0), foot[1] - 0.03),
             (foot[0] + 0.045 + max(toe, 0) * 0.7, foot[1] + 0.04),
             (foot[0] - 0.045 + min(toe, 0) * 0.7, foot[1] + 0.04)],
            (28, 26, 26),
        )  # fmt: skip

    def _arm(
        self, m: MeshBuilder, side: int, shoulder: float, y: float, swing: float, side_on: float, colour: Colour
    ) -> None:
        h = self.height
        x = side * shoulder * (1.0 - 0.25 * abs(side_on))
        elbow = (x + side * 0.03 + 0.17 * h * np.sin(swing) * side_on, y - 0.17 * h * np.cos(swing))
        hand = (elbow[0] + 0.15 * h * np.sin(swing + 0.25) * side_on, elbow[1] - 0.15 * h * np.cos(swing))
        self._limb(m, (x, y - 0.01 * h), elbow, 0.05, 0.043, colour)
        self._limb(m, elbow, hand, 0.043, 0.033, colour)
        m.blob(hand[0], hand[1] - 0.02, 0.04, 0.05, self.skin)


def _tone(colour: Colour, factor: float) -> Colour:
    r, g, b = (min(255.0, c * factor) for c in colour)
    return (r, g, b)
