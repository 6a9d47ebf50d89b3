"""Base class of decoders, with the checks and final steps that they share, and operations on arrays and tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.layout import POSSIBLE, Bound, Difference, Layout, Match, Pattern, match
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
#: A numpy array, or a torch.Tensor.
Values = Any

#: Maximum number of boxes of a frame that are considered, those with the best scores.
MAX_CANDIDATES = 1000
#: Limit of the numbers that boxes are computed from, so that all boxes stay finite: the suppression separates classes
#: by offsets that grow with the largest coordinate.
LIMIT = 1e6
#: Score threshold of models that do not define one.
DEFAULT_SCORE_THRESHOLD = 0.4
#: Arguments of Preprocess: as Ultralytics trains; mean and deviation of ImageNet.
LETTERBOX = {"fit": "letterbox"}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class TwoParts(NamedTuple):
    """A decoder split in two, with equal results: the first part runs on the device, so that less is copied.

    condense: raw outputs on any device -> what `decode` needs, on the same device. It can be captured in a CUDA graph:
    it does not synchronize, and no shape depends on values. decode: the result of condense(), on the CPU, and the
    source image's (H, W) -> the result. Raises OutputError.
    """

    condense: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
    decode: Callable[[Sequence[Values], tuple[int, int]], Any]


class Decoder:
    """Raw outputs of a network on the CPU and the source image's (H, W) -> a result, such as Detections or Lanes.

    preprocess: makes the network's input. labels: class names by index. keep: names of the classes to report;
    empty: all. score_threshold (0..1; 0: own_threshold, the model's own), iou_threshold (0..1) and max_detections may
    be set at any time; a call in progress may still use the old values. Raises ValueError, see :meth:`check_labels`.
    """

    #: Name of the decoder, shapes of the outputs that it reads (in any order), and the same for people.
    name: ClassVar[str] = ""
    patterns: ClassVar[Sequence[Pattern]] = ()
    signature: ClassVar[str] = ""
    #: The other fields of its DecoderSpec.
    result_kind: ClassVar[str] = "detections"
    default_labels: ClassVar[tuple[str, ...]] = ()

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
        self._checked_shapes: tuple[Any, ...] | None = None  # of the latest outputs; an engine's do not change

    @classmethod
    def check_labels(cls, labels: Sequence[str], keep: Sequence[str]) -> None:
        """Raise ValueError if `keep` names a class that is not in `labels`, or does not suit this decoder."""
        unknown = [label for label in keep if label not in labels]
        if unknown:
            raise ValueError(f"keep = {list(keep)}: no class {unknown[0]!r}; allowed: {', '.join(labels)}")

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        """Whether this decoder can read such outputs, if it is named."""
        return match(layout, cls.patterns)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        """How certain it is that outputs which match are meant for this decoder, and why. axes: see Bound."""
        return POSSIBLE, "the shapes"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """Whether this decoder reads such outputs, and how certain that is."""
        found = cls.matches(layout)
        if isinstance(found, Difference):
            return found
        judged = cls.certainty(found.axes, layout)
        return judged if isinstance(judged, Difference) else Match(*judged, found.axes["classes"])

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
        shapes = tuple(map(np.shape, outputs))
        if shapes != self._checked_shapes:
            self.check(outputs)
            self._checked_shapes = shapes
        arrays = []
        for index, output in enumerate(outputs):
            # It shares memory with the output where possible.
            array = np.asarray(output.float().numpy() if hasattr(output, "float") else output, np.float32)
            arrays.append(array)
            # If the sum in float32 is finite, all values are; if not, it may have overflowed.
            with np.errstate(over="ignore", invalid="ignore"):
                finite = math.isfinite(array.sum())
            if not finite and not math.isfinite(array.sum(dtype=np.float64)):
                bad = int((~np.isfinite(array)).sum())
                raise OutputError(f"output {index} holds NaN or infinite values: {bad} of {array.size}")
        return self.decode(arrays, source_size)

    def check(self, outputs: Sequence[Values]) -> None:
        """Raise OutputError if the number or the shapes of the outputs are not those that this decoder reads."""
        size = (self.preprocess.width, self.preprocess.height)
        layout = Layout(tuple(tuple(output.shape) for output in outputs), size, len(self.labels))
        found = self.matches(layout)
        if isinstance(found, Difference):
            raise OutputError(
                f"outputs of shapes {layout}, but decoder {self.name} with {len(self.labels)} class(es) reads "
                f"{self.signature}: {found.text}"
            )

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Any:
        """Decode checked outputs."""
        assert self.reduce is not None  # otherwise this method is overridden
        return self.decode_reduced(self.reduce(outputs), source_size)

    #: For decoders that are worth splitting: raw outputs, float32 tensors on any device -> less, on the same device. It
    #: must also take arrays unless `decode` is overridden.
    reduce: Callable[[Sequence[Values]], tuple[Values, ...]] | None = None

    def decode_reduced(self, reduced: Sequence[Any], source_size: tuple[int, int]) -> Any:
        """Decode the result of `reduce`, as arrays of finite numbers."""
        raise NotImplementedError

    def in_two_parts(self) -> TwoParts | None:
        """The decoder split in two, if reducing the outputs on the device saves time; None otherwise."""
        reduce = self.reduce
        if reduce is None:
            return None

        def decode(reduced: Sequence[Values], source_size: tuple[int, int]) -> Any:
            arrays = [np.asarray(each) for each in reduced]
            if not math.isfinite(sum(float(each.sum(dtype=np.float64)) for each in arrays if each.dtype.kind == "f")):
                raise OutputError("an output holds NaN or infinite values")
            return self.decode_reduced(arrays, source_size)

        return TwoParts(lambda outputs: reduce([output.float() for output in outputs]), decode)

    def select(
        self, boxes: Floats, scores: Floats, class_ids: Integers, source_size: tuple[int, int], **options: Any
    ) -> Detections:
        """The candidates that :meth:`choose` chooses, with the same arguments."""
        index, corners = self.choose(boxes, scores, class_ids, source_size, **options)
        found = scores[index].astype(np.float32, copy=False), class_ids[index].astype(np.int64, copy=False)
        return Detections(corners.astype(np.float32, copy=False), *found, self.labels)

    def choose(
        self,
        boxes: Floats,
        scores: Floats,
        class_ids: Integers,
        source_size: tuple[int, int],
        *,
        suppressed: bool = True,
        limit: int = MAX_CANDIDATES,
    ) -> tuple[Integers, Floats]:
        """Candidates (all classes, any order) -> the kept classes over the threshold, after NMS per class, clipped.

        The best score comes first; equal scores stay in order, which also decides which of two boxes NMS keeps. boxes:
        (N, 4) float32 x1, y1, x2, y2 in input pixels. scores: (N,) float32. class_ids: (N,) int64. suppressed: False
        for a network that leaves no duplicates. limit: number of candidates that are considered, the best ones. A
        decoder with many candidates should drop those under the threshold before it computes their boxes.

        Returns the indices (K,) of at most max_detections candidates and their boxes (K, 4) in source pixels, inside
        the image. Raises OutputError for a class without a name.
        """
        index = np.flatnonzero(scores >= self.score_threshold)
        ids = class_ids[index]
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.labels):
            wrong = int(ids.max() if ids.max() >= len(self.labels) else ids.min())
            raise OutputError(f"class {wrong} in the outputs; labels has {len(self.labels)} names")
        if self.kept:
            index = index[np.isin(ids, self.kept)]
        index = index[np.argsort(-scores[index], kind="stable")[:limit]]
        corners = self.preprocess.geometry(source_size).to_source(boxes[index])
        if suppressed and len(index) > 1:
            best = suppress(corners, scores[index], class_ids[index], self.iou_threshold)
            index, corners = index[best], corners[best]
        height, width = source_size
        corners = np.minimum(np.maximum(corners, 0), np.array([width, height, width, height], np.float32))
        has_area = (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])
        inside = np.flatnonzero(has_area)[: self.max_detections]
        return index[inside], corners[inside]


def suppress(boxes: Floats, scores: Floats, class_ids: Integers, iou_threshold: float) -> Integers:
    """Indices of the boxes that greedy non-maximum suppression per class keeps, best score first; equal scores stay in
    order. boxes: (N, 4) x1, y1, x2, y2, N > 0. A box is dropped if its intersection over union with a better one is
    above the threshold.
    """
    # OpenCV's loop takes a tenth of the time of one in NumPy. It separates classes by offsets, which negative
    # coordinates would break.
    corners = boxes.astype(np.float64) - min(float(boxes.min()), 0.0)
    corners[:, 2:] -= corners[:, :2]
    arguments: Any = corners, scores, class_ids.astype(np.int32), 0.0, iou_threshold
    kept = cv2.dnn.NMSBoxesBatched(*arguments)
    return np.asarray(kept, np.int64).reshape(-1)


def library(values: Values) -> Any:
    """NumPy or PyTorch, whichever `values` belong to, for the functions whose names and arguments are the same."""
    if isinstance(values, np.ndarray):
        return np
    import torch

    return torch


def sigmoid(values: Values) -> Values:
    """1 / (1 + exp(-x)) of each value, without overflow."""
    return 0.5 * (1.0 + library(values).tanh(0.5 * values))


def logsumexp(values: Values) -> Values:
    """log(sum(exp(values))) over the first axis."""
    lib = library(values)
    top = lib.amax(values, 0)
    return top + lib.log(lib.exp(values - top).sum(0))


def softmax(rows: Values) -> Values:
    """Softmax over the second axis of (N, K)."""
    lib = library(rows)
    powers = lib.exp(rows - lib.amax(rows, 1)[:, None])
    return powers / powers.sum(1)[:, None]
