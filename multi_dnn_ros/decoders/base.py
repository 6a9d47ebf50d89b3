"""Base class of decoders, with the checks and final steps that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.arrays import Floats, Integers, Values, to_array
from multi_dnn_ros.decoders.layout import POSSIBLE, Difference, Layout, Match, Pattern, match_classes
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

if TYPE_CHECKING:
    from torch import Tensor

#: Maximum number of boxes of a frame that are considered, those with the best scores.
MAX_CANDIDATES = 1000
#: Limit of the numbers that boxes are computed from, so that all boxes stay finite: the suppression separates classes
#: by offsets that grow with the largest coordinate.
LIMIT = 1e6
#: Score threshold of models that do not define one.
DEFAULT_SCORE_THRESHOLD = 0.4


class TwoParts(NamedTuple):
    """A decoder split in two, with equal results: the first part runs on the device, so that less is copied.

    condense: raw outputs on any device -> what `decode` needs, on the same device. It can be captured in a CUDA graph:
    it does not synchronize, and no shape depends on values. decode: the result of condense(), on the CPU, and the
    source image's (H, W) -> the result. Raises OutputError.
    """

    condense: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
    decode: Callable[[Sequence[Values], tuple[int, int]], Any]


def total_of(values: Tensor) -> Tensor:
    """Sum of all values as a tensor (), in float64: it is finite if and only if all float32 values are."""
    import torch

    return values.sum(dtype=torch.float64)


def expect_finite(name: str, total: float, values: Floats | None = None) -> None:
    """Raise OutputError unless `total` is finite. values: the summed values, to count the bad ones."""
    if not math.isfinite(total):
        counted = "" if values is None else f": {int((~np.isfinite(values)).sum())} of {values.size}"
        raise OutputError(f"{name} holds NaN or infinite values{counted}")


def suppress(boxes: Floats, scores: Floats, class_ids: npt.NDArray[Any], iou_threshold: float) -> Integers:
    """Indices of the boxes that greedy non-maximum suppression per class keeps, best score first; equal scores stay in
    order. boxes: (N, 4) x1, y1, x2, y2. A box is dropped if its intersection over union with a better one is above the
    threshold.
    """
    if not len(boxes):
        return np.zeros(0, np.int64)
    # OpenCV's loop takes a tenth of the time of one in NumPy. It separates classes by offsets, which negative
    # coordinates would break.
    corners = boxes.astype(np.float64) - min(float(boxes.min()), 0.0)
    corners[:, 2:] -= corners[:, :2]
    arguments: Any = corners, scores, class_ids.astype(np.int32), 0.0, iou_threshold
    kept = cv2.dnn.NMSBoxesBatched(*arguments)
    return np.asarray(kept, np.int64).reshape(-1)


class Decoder:
    """Raw outputs of a network on the CPU and the source image's (H, W) -> a result, such as Detections or Lanes.

    preprocess: makes the network's input. labels: class names by index. keep: names of the classes to report;
    empty: all. score_threshold (0..1; 0: own_threshold, the model's own), iou_threshold (0..1) and max_detections may
    be set at any time; a call in progress may still use the old values. Raises ValueError, see :meth:`check_labels`.
    """

    #: Name of the decoder, and shapes of the outputs that it reads, in any order.
    name: ClassVar[str] = ""
    signature: ClassVar[str] = ""
    patterns: ClassVar[Sequence[Pattern]] = ()

    def __init__(
        self,
        preprocess: Preprocess,
        labels: Sequence[str],
        *,
        keep: Sequence[str] = (),
        score_threshold: float = 0.0,
        own_threshold: float = DEFAULT_SCORE_THRESHOLD,
        iou_threshold: float = 0.5,
        max_detections: int = 100,
    ) -> None:
        self.check_labels(labels, keep)
        self.preprocess = preprocess
        self.labels = tuple(labels)
        self.kept = tuple(index for index, label in enumerate(labels) if label in keep)
        self.own_threshold = own_threshold
        self.score_threshold = score_threshold
        self.iou_threshold = iou_threshold
        self.max_detections = max_detections

    @classmethod
    def check_labels(cls, labels: Sequence[str], keep: Sequence[str]) -> None:
        """Raise ValueError if `keep` names a class that is not in `labels`, or does not suit this decoder."""
        unknown = [label for label in keep if label not in labels]
        if unknown:
            raise ValueError(f"keep = {list(keep)}: no class {unknown[0]!r}; allowed: {', '.join(labels)}")

    @classmethod
    def fits(cls, layout: Layout) -> Match | Difference:
        """Whether this decoder can read such outputs, if it is named."""
        return cls.recognize(layout)

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """Whether this decoder reads such outputs, and how certain that is."""
        return cls.matches_patterns(layout)

    @classmethod
    def matches_patterns(cls, layout: Layout) -> Match | Difference:
        """Whether the outputs have the shapes of `patterns`."""
        found = match_classes(layout, cls.patterns)
        return found if isinstance(found, Difference) else Match(POSSIBLE, "the shapes", found.axes.get("classes", 0))

    @property
    def score_threshold(self) -> float:
        """The threshold in effect; never 0, which is replaced by own_threshold."""
        return self._score_threshold

    @score_threshold.setter
    def score_threshold(self, value: float) -> None:
        self._score_threshold = value or self.own_threshold

    def __call__(self, outputs: Sequence[Values], source_size: tuple[int, int]) -> Any:
        """Decode one frame. outputs: arrays, or tensors on the CPU, of any float type.

        Raises OutputError for a wrong number, shape or class count, NaN or infinity.
        """
        self.check(outputs)
        arrays = [to_array(output) for output in outputs]
        for index, array in enumerate(arrays):
            # If the sum in float32 is finite, all values are; if not, it may have overflowed.
            with np.errstate(over="ignore", invalid="ignore"):
                finite = math.isfinite(array.sum())
            if not finite:
                expect_finite(f"output {index}", float(array.sum(dtype=np.float64)), array)
        return self.decode(arrays, source_size)

    def check(self, outputs: Sequence[Values]) -> None:
        """Raise OutputError if the number or the shapes of the outputs are not those that this decoder reads."""
        size = (self.preprocess.width, self.preprocess.height)
        layout = Layout(tuple(tuple(output.shape) for output in outputs), size, len(self.labels))
        found = self.fits(layout)
        if isinstance(found, Difference):
            raise OutputError(
                f"outputs of shapes {layout}, but decoder {self.name} with {len(self.labels)} class(es) reads "
                f"{self.signature}: {found.text}"
            )

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Any:
        """Decode checked outputs."""
        raise NotImplementedError

    def in_two_parts(self) -> TwoParts | None:
        """The decoder split in two, if reducing the outputs on the device saves time; None otherwise."""
        return None

    def select(self, boxes: Floats, scores: Floats, class_ids: Integers, source_size: tuple[int, int]) -> Detections:
        """Candidates (all classes, any order) -> the kept classes over the threshold, after NMS per class, clipped.

        The best score comes first; equal scores stay in order, which also decides which of two boxes NMS keeps. boxes:
        (N, 4) float32 x1, y1, x2, y2 in input pixels. scores: (N,) float32. class_ids: (N,) int64. A decoder with many
        candidates should drop those under the threshold before it computes their boxes.
        """
        chosen = scores >= self.score_threshold
        if self.kept:
            chosen &= np.isin(class_ids, self.kept)
        indices = np.flatnonzero(chosen)
        if len(indices) > MAX_CANDIDATES:
            indices = indices[np.argsort(-scores[indices], kind="stable")[:MAX_CANDIDATES]]
        corners, values, ids = boxes[indices], scores[indices], class_ids[indices]
        corners = self.preprocess.geometry(source_size).to_source(corners)
        if len(indices) > 1:
            best = suppress(corners, values, ids, self.iou_threshold)
            corners, values, ids = corners[best], values[best], ids[best]
        return self.finish(corners, values, ids, source_size)

    def select_ranked(
        self, boxes: Floats, scores: Floats, class_ids: Integers, source_size: tuple[int, int]
    ) -> Detections:
        """As :meth:`select`, for a network that leaves no duplicates: without non-maximum suppression.

        Raises OutputError for a class without a name.
        """
        chosen = scores >= self.score_threshold
        ids = class_ids[chosen]
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.labels):
            wrong = int(ids.max() if ids.max() >= len(self.labels) else ids.min())
            raise OutputError(f"class {wrong} in the outputs; labels has {len(self.labels)} names")
        if self.kept:
            chosen &= np.isin(class_ids, self.kept)
        index = np.flatnonzero(chosen)
        index = index[np.argsort(-scores[index], kind="stable")]
        corners = self.preprocess.geometry(source_size).to_source(boxes[index])
        return self.finish(corners, scores[index], class_ids[index], source_size)

    def finish(
        self, boxes: Floats, scores: Floats, class_ids: npt.NDArray[Any], source_size: tuple[int, int]
    ) -> Detections:
        """Boxes in source pixels, best first -> the best max_detections inside the image, clipped to it."""
        if len(boxes):
            height, width = source_size
            clipped = np.minimum(np.maximum(boxes, 0), np.array([width, height, width, height], np.float32))
            has_area = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
            inside = np.flatnonzero(has_area)[: self.max_detections]
            boxes, scores, class_ids = clipped[inside], scores[inside], class_ids[inside]
        return Detections(
            boxes=boxes.astype(np.float32, copy=False),
            scores=scores.astype(np.float32, copy=False),
            class_ids=class_ids.astype(np.int64, copy=False),
            labels=self.labels,
        )
