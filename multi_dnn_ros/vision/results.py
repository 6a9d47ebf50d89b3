"""Results of the decoders, in pixels of the source image. Does not import ROS or PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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

    numbers: (h, w) uint8, lane number of each pixel, 0: none. size: (H, W) of the source image; None: as `numbers`.
    """

    numbers: npt.NDArray[np.uint8]
    lanes: tuple[Lane, ...]
    size: tuple[int, int] | None = None

    @property
    def mask(self) -> npt.NDArray[np.uint8]:
        """(H, W) uint8 in the source size, lane number of each pixel, 0: none.

        Computed on demand: at 1280x720 it takes as long as finding the lines. Only `numbers`, a fifteenth of its size,
        is sent from the engine process to the node's.
        """
        if self.size is None or self.size == self.numbers.shape:
            return self.numbers
        import cv2  # only here: an engine process without lanes starts sooner

        height, width = self.size
        return np.asarray(cv2.resize(self.numbers, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8)


Decoded = Detections | Lanes
