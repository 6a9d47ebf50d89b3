"""Base class of decoders, with the checks and final steps that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torchvision.ops import batched_nms, nms

from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

#: A tensor must be on the CPU.
ArrayOrTensor = npt.NDArray[Any] | torch.Tensor
#: Maximum number of boxes for non-maximum suppression, whose time is quadratic in it.
MAX_CANDIDATES = 1000
#: Limit of the numbers that boxes are computed from, so that all boxes stay finite. One infinite box would break the
#: suppression of all others, because torchvision separates classes by offsets that grow with the largest coordinate.
LIMIT = 1e6
#: Score threshold of models that do not define one.
DEFAULT_SCORE_THRESHOLD = 0.4
#: Up to this number of boxes torchvision's batched_nms separates classes on the CPU by offsets; above it, in a loop.
_MAX_OFFSET_BOXES = 1000


def total_of(values: torch.Tensor) -> torch.Tensor:
    """Sum of all values as a tensor (), in float64: it is finite if and only if all float32 values are.

    Does not synchronize with a GPU.
    """
    return values.sum(dtype=torch.float64)


class HostValue:
    """A number that the host may change between two launches of a captured CUDA graph, such as a threshold."""

    def __init__(self, value: float = 0.0) -> None:
        self._host = torch.tensor(value, dtype=torch.float32)

    def set(self, value: float) -> None:
        """Use another number from now on."""
        self._host.fill_(value)

    def on(self, device: torch.device) -> torch.Tensor:
        """The number as a tensor () on a device. Captured in a graph, this is a copy that each launch makes anew."""
        if device.type == "cuda" and not self._host.is_pinned():  # in the first call, before the capture
            self._host = self._host.pin_memory()
        return self._host.to(device, non_blocking=True)


def expect_finite(name: str, total: torch.Tensor | float, values: torch.Tensor | None = None) -> None:
    """Raise OutputError unless `total`, on the CPU, is finite. values: the summed values, to count the bad ones.

    A sum is much faster than a test of every value.
    """
    if not math.isfinite(float(total)):
        counted = "" if values is None else f": {int((~torch.isfinite(values)).sum())} of {values.numel()}"
        raise OutputError(f"{name} holds NaN or infinite values{counted}")


def suppress(
    boxes: npt.NDArray[np.float32], scores: npt.NDArray[np.float32], class_ids: npt.NDArray[Any], iou_threshold: float
) -> npt.NDArray[np.int64]:
    """Indices of the boxes that non-maximum suppression per class keeps, best score first; equal scores stay in order.

    As torchvision's batched_nms, with the offsets between classes computed in NumPy: each operation of PyTorch releases
    the GIL, and another DNN's thread may then hold it for a whole switch interval. Unlike there, the offsets also
    separate classes if coordinates are negative, as those of boxes that extend beyond the image.
    """
    if not len(boxes):
        return np.zeros(0, np.int64)
    if len(boxes) > _MAX_OFFSET_BOXES:
        found = batched_nms(*map(torch.from_numpy, (boxes, scores, class_ids)), iou_threshold)
        kept = np.sort(found.numpy())  # the sort of torchvision does not keep the order of equal scores
        kept = kept[np.argsort(-scores[kept], kind="stable")]
    else:
        offsets = class_ids.astype(np.float32) * (boxes.max() - min(boxes.min(), np.float32(0)) + np.float32(1))
        kept = nms(torch.from_numpy(boxes + offsets[:, None]), torch.from_numpy(scores), iou_threshold).numpy()
    return np.asarray(kept, np.int64)


class TwoParts(Protocol):
    """A decoder split in two: condense() on the device, then decode() on the CPU, with equal results."""

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Raw outputs -> the data that decode() needs, on the same device. Shapes must not depend on values."""
        ...

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        """Result of condense(), on the CPU, and the source image's (H, W) -> result. Raises OutputError."""
        ...


class Decoder:
    """Raw outputs of a network on the CPU and the source image's (H, W) -> a result, such as Detections or Lanes.

    preprocess: makes the network's input. labels: class names by index. keep: names of the classes to report;
    empty: all. score_threshold (0..1; 0: own_threshold, the model's own), iou_threshold (0..1) and max_detections may
    be set at any time; a call in progress may still use the old values. Raises ValueError, see :meth:`check_labels`.
    """

    #: Name of the decoder, for messages.
    name: ClassVar[str] = ""
    #: Layers to run on the device, for a decoder with DecoderSpec.takes_detector; None: the whole network.
    core: nn.Module | None = None

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

    @property
    def score_threshold(self) -> float:
        """The threshold in effect; never 0, which is replaced by own_threshold."""
        return self._score_threshold

    @score_threshold.setter
    def score_threshold(self, value: float) -> None:
        self._score_threshold = value or self.own_threshold

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        """Decode one frame. Raises OutputError for a wrong number, shape or class count, NaN or infinity."""
        self.check(outputs)
        for index, output in enumerate(outputs):
            # A sum in the output's own dtype takes a fifth of the time of one in float64. If it is finite, all values
            # are; if not, it may have overflowed, and the sum in float64 decides.
            if not math.isfinite(float(output.sum())):
                expect_finite(f"output {index}", total_of(output), output)
        return self.decode([output.float() for output in outputs], source_size)

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        """Raise OutputError if the number or the shapes of the outputs are not those that this decoder reads."""
        raise NotImplementedError

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        """Decode checked float32 outputs."""
        raise NotImplementedError

    def in_two_parts(self) -> TwoParts | None:
        """The decoder split in two, if reducing the outputs on the device saves time; None otherwise."""
        return None

    def expect_outputs(self, outputs: Sequence[torch.Tensor], count: int) -> None:
        """Raise OutputError unless there are `count` outputs."""
        if len(outputs) != count:
            name, shapes = self.name or type(self).__name__, ", ".join(str(tuple(output.shape)) for output in outputs)
            raise OutputError(f"decoder {name} reads {count} output(s), but the DNN returns {len(outputs)}: {shapes}")

    def select(
        self,
        boxes: ArrayOrTensor,
        scores: ArrayOrTensor,
        class_ids: ArrayOrTensor,
        source_size: tuple[int, int],
    ) -> Detections:
        """Candidates (all classes, any order) -> the kept classes over the threshold, after NMS per class, clipped.

        The best score comes first; equal scores stay in order, which also decides which of two boxes NMS keeps. boxes:
        (N, 4) float32 x1, y1, x2, y2 in input pixels. scores: (N,) float32. class_ids: (N,) int64. A decoder with many
        candidates should drop those under the threshold before it computes their boxes.
        """
        # numpy, because its calls take a fraction of the time of PyTorch's for a few boxes.
        corners, values = np.asarray(boxes, np.float32), np.asarray(scores, np.float32)
        ids = np.asarray(class_ids, np.int64)
        chosen = values >= self.score_threshold
        if self.kept:
            chosen &= np.isin(ids, self.kept)
        indices = chosen.nonzero()[0]
        if not len(indices):
            return self.finish(np.zeros((0, 4), np.float32), values[indices], ids[indices], source_size)
        if len(indices) > MAX_CANDIDATES:
            indices = indices[np.argsort(-values[indices], kind="stable")[:MAX_CANDIDATES]]
        corners, values, ids = corners[indices], values[indices], ids[indices]
        corners = self.preprocess.geometry(source_size).to_source(corners)
        if len(indices) > 1:
            best = suppress(corners, values, ids, self.iou_threshold)
            corners, values, ids = corners[best], values[best], ids[best]
        return self.finish(corners, values, ids, source_size)

    def finish(
        self,
        boxes: npt.NDArray[np.float32],
        scores: npt.NDArray[np.float32],
        class_ids: npt.NDArray[np.int64],
        source_size: tuple[int, int],
    ) -> Detections:
        """Boxes in source pixels, best first -> the best max_detections inside the image, clipped to it."""
        if len(boxes):
            height, width = source_size
            clipped = np.minimum(np.maximum(boxes, 0), np.array([width, height, width, height], np.float32))
            has_area = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
            inside = has_area.nonzero()[0][: self.max_detections]
            boxes, scores, class_ids = clipped[inside], scores[inside], class_ids[inside]
        return Detections(
            boxes=boxes.astype(np.float32, copy=False),
            scores=scores.astype(np.float32, copy=False),
            class_ids=class_ids.astype(np.int64, copy=False),
            labels=self.labels,
        )
