"""Light and air: apparent colour of a surface at a distance, in sunlight, in fog or in the headlights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import Points

#: Minimum remaining contrast in fog for objects and lane lines to be in the truth.
VISIBLE_CONTRAST = 0.2


@dataclass(frozen=True)
class Light:
    """ambient: (3,) factor on every colour. sun: (3,) unit vector in camera coordinates towards the sun (or moon).
    contrast: 0..1, darkening of the side away from the sun. fog: (3,) RGB of distant air. visibility_m: distance at
    which contrast falls to 1/e. beam: strength of the headlights, 0 by day. shadow: strength of cast shadows, 0..1.
    """

    ambient: Points
    sun: Points
    contrast: float
    fog: Points
    visibility_m: float
    beam: float
    shadow: float

    def transmittance(self, distance: npt.ArrayLike) -> Points:
        """Share of a surface's own light that reaches the camera from `distance` metres."""
        return np.exp(-np.asarray(distance, dtype=np.float64) / self.visibility_m)

    def lit(self, colours: Points, normals: Points, glow: Points, distance: float, x: float) -> Points:
        """Apparent colours (M, 3) of surfaces with (M, 3) colours and normals, `distance` ahead, `x` to the right."""
        facing = 1.0 - self.contrast + self.contrast * np.clip(normals @ self.sun + 0.25, 0.0, 1.0)
        beam = self.beam * np.exp(-distance / 28.0) * np.exp(-((x / (4.0 + 0.25 * distance)) ** 2))
        factor = self.ambient[None, :] * facing[:, None] + beam
        own = colours * (factor * (1.0 - glow[:, None]) + glow[:, None])
        t = float(self.transmittance(distance))
        # Lamps are visible farther through fog than surfaces.
        keep = t + (np.sqrt(t) - t) * glow[:, None]
        seen: Points = np.clip(own * keep + self.fog * (1.0 - keep), 0.0, 255.0)
        return seen

    def flat(self, colour: npt.ArrayLike, distance: npt.ArrayLike) -> Points:
        """Apparent colours (N, 3) of ground of one colour (3,) at (N,) distances."""
        reach = np.atleast_1d(np.asarray(distance, dtype=np.float64))
        beam = self.beam * np.exp(-reach / 22.0)
        own = np.asarray(colour, dtype=np.float64)[None, :] * (self.ambient[None, :] + beam[:, None])
        t = self.transmittance(reach)[:, None]
        return np.clip(own * t + self.fog * (1.0 - t), 0.0, 255.0)
