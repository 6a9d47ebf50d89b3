"""Results of the decoders, in pixels of the source image. Does not import ROS or PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.view import Window

#: Value of the pixels of a Mask that belong to no class.
NO_CLASS = 255


class OutputError(ValueError):
    """The raw outputs of a DNN cannot be decoded: wrong shape, NaN or infinite values. The message names the output."""


@dataclass(frozen=True)
class Detections:
    """Boxes of one frame, best score first.

    boxes: (N, 4) float32, x1, y1, x2, y2 in source pixels, clipped to the image.
    scores: (N,) float32 in 0..1.
    class_ids: (N,) int64, index into `labels`.
    labels: class names by index.
    ids: (N,) int64, identities of tracked objects, 0: none; None: the boxes are not tracked.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int64]
    labels: tuple[str, ...]
    ids: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True)
class Lane:
    """One lane line.

    number: counted from left to right at the bottom of the image, from 1.
    points: (K, 2) float32, K >= 1, u in 0..W-1 and v in 0..H-1 (source pixels), from the bottom up.
    curve: (3,) float64 c0, c1, c2 of u = c0 + c1 * v + c2 * v**2 in source pixels.
    score: mean lane probability of the line's pixels, 0..1.
    """

    number: int
    points: npt.NDArray[np.float32]
    curve: npt.NDArray[np.float64]
    score: float


@dataclass(frozen=True)
class Lanes:
    """Lane lines of one frame.

    numbers: (h, w) uint8, lane number of each pixel, 0: none. size: (H, W) of the source image; None: that of
    `numbers`. window: the part of the image that `numbers` shows; None: all of it.
    """

    numbers: npt.NDArray[np.uint8]
    lanes: tuple[Lane, ...]
    size: tuple[int, int] | None = None
    window: Window | None = None

    @property
    def mask(self) -> npt.NDArray[np.uint8]:
        """(H, W) uint8 in the source size, lane number of each pixel, 0: none.

        Computed on demand: at 1280x720 it takes as long as finding the lines. Only `numbers`, a fifteenth of its size,
        is sent from the engine process to the node's.
        """
        return self.numbers if self.size is None else enlarged(self.numbers, self.size, self.window, 0)


def enlarged(
    values: npt.NDArray[np.uint8], size: tuple[int, int], window: Window | None, outside: int
) -> npt.NDArray[np.uint8]:
    """A map (h, w) of a window of the image -> (H, W) = `size`, with the value `outside` in the rest of the image.

    window: None: the map shows the whole image.
    """
    height, width = size if window is None else window.size
    if values.shape != (height, width):
        values = np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8)
    if window is None or window.size == size:
        return values
    whole = np.full(size, outside, np.uint8)
    whole[window.top : window.bottom, window.left : window.right] = values
    return whole


@dataclass(frozen=True)
class Mask:
    """The class of each pixel of one frame.

    class_ids: (h, w) uint8, index into `labels`, NO_CLASS: none. labels: class names by index, at most NO_CLASS.
    size: (H, W) of the source image. window: the part of the image that `class_ids` shows; None: all of it.
    """

    class_ids: npt.NDArray[np.uint8]
    labels: tuple[str, ...]
    size: tuple[int, int]
    window: Window | None = None

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """(H, W) uint8 in the source size, class of each pixel, NO_CLASS: none. Computed on demand, as Lanes.mask."""
        return enlarged(self.class_ids, self.size, self.window, NO_CLASS)


@dataclass(frozen=True)
class InstanceMasks:
    """Boxes of one frame and the pixels of each.

    numbers: (h, w) uint8, for each pixel the position of its box in `detections`, counted from 1; 0: none. size: (H, W)
    of the source image. window: the part of the image that `numbers` shows; None: all of it.
    """

    detections: Detections
    numbers: npt.NDArray[np.uint8]
    size: tuple[int, int]
    window: Window | None = None

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """(H, W) uint8 in the source size, as `numbers`. Computed on demand, as Lanes.mask."""
        return enlarged(self.numbers, self.size, self.window, 0)


def boxes_of(result: Any) -> Detections | None:
    """The boxes of a result; None for one without boxes, such as lane lines or the result of another package."""
    if isinstance(result, InstanceMasks):
        return result.detections
    return result if isinstance(result, Detections) else None


@dataclass(frozen=True)
class SeveralResults:
    """The results of a DNN with parameter `outputs`, for one frame, by the name of the output."""

    by_output: Mapping[str, Any]


def result_name(dnn: str, output: str) -> str:
    """Name of a result: `<dnn>`, or `<dnn>/<output>` if the DNN has several. output: empty if it has one."""
    return f"{dnn}/{output}" if output else dnn


def results_by_name(dnn: str, result: Any) -> dict[str, Any]:
    """The results of one inference of a DNN by :func:`result_name`."""
    if not isinstance(result, SeveralResults):
        return {dnn: result}
    return {result_name(dnn, output): value for output, value in result.by_output.items()}


Decoded = Detections | Lanes | Mask | InstanceMasks
