"""A picture of lane points in metres: the image with its lane lines, and the same lines seen from above."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure
from multi_dnn_ros.training.scenes import Scene
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, Layer
from multi_dnn_ros.vision.result_kinds.lanes import lane_color
from multi_dnn_ros.vision.results import Lanes

_AHEAD_M, _SIDEWAYS_M = 45.0, 12.0


def plot_ground(path: Path, scene: Scene, lanes: Lanes, lines: Mapping[int, npt.NDArray[np.float64]]) -> None:
    """Write a PNG. lines: x, y, z in metres of each line of `lanes`, by its number.

    Raises what :func:`multi_dnn_ros.common.extras.optional` raises without matplotlib.
    """
    with optional("a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.1, 1.0))
    left.imshow(draw(scene.image, [Layer("lane", RESULT_KINDS.get("lanes"), lanes)]))
    left.set_axis_off()
    for index, line in enumerate(scene.lines):
        right.plot(line[:, 1], line[:, 0], color="0.6", linewidth=1.0, label="true lines" if index == 0 else None)
    for number, points in lines.items():
        color = tuple(channel / 255 for channel in lane_color(number))
        right.plot(points[:, 1], points[:, 0], ".", color=color, markersize=5, label=f"line {number}")
    right.set_xlim(_SIDEWAYS_M, -_SIDEWAYS_M)  # y is to the left
    right.set_ylim(0.0, _AHEAD_M)
    right.set_aspect("equal")
    right.set_xlabel("y, to the left (m)")
    right.set_ylabel("x, forward (m)")
    right.grid(color="0.9")
    right.legend(loc="lower left", fontsize="small")
    write_figure(path, figure)
