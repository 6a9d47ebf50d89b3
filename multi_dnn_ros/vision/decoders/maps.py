"""Maps of a network without the padding of its input."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from multi_dnn_ros.vision.preprocess import Preprocess


def without_padding(values: npt.NDArray[Any], preprocess: Preprocess, source_size: tuple[int, int]) -> npt.NDArray[Any]:
    """The part of a map (h, w), of any resolution, that shows an image of (H, W); at least one value."""
    geometry = preprocess.geometry(source_size)
    across, down = values.shape[1] / preprocess.width, values.shape[0] / preprocess.height
    left, right = round(geometry.left * across), round((geometry.left + geometry.width) * across)
    top, bottom = round(geometry.top * down), round((geometry.top + geometry.height) * down)
    return values[top : max(bottom, top + 1), left : max(right, left + 1)]
