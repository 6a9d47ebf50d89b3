"""Maps of a network without the padding of its input."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from multi_dnn_ros.vision.preprocess import Preprocess


def content_of(shape: tuple[int, int], preprocess: Preprocess, source_size: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns of a map of (h, w) values, of any resolution, that show an image of (H, W); at least one."""
    geometry = preprocess.geometry(source_size)
    across, down = shape[1] / preprocess.width, shape[0] / preprocess.height
    left, right = round(geometry.left * across), round((geometry.left + geometry.width) * across)
    top, bottom = round(geometry.top * down), round((geometry.top + geometry.height) * down)
    return slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1))


def without_padding(values: npt.NDArray[Any], preprocess: Preprocess, source_size: tuple[int, int]) -> npt.NDArray[Any]:
    """The part of a map (h, w), of any resolution, that shows an image of (H, W); at least one value."""
    return values[content_of((values.shape[0], values.shape[1]), preprocess, source_size)]
