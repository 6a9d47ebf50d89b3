"""What every decoder has, and the checks and last steps that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torchvision.ops import batched_nms

from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Decoded, Detections, OutputError

#: A tensor is on the CPU.
ArrayOrTensor = npt.NDArray[Any] | torch.Tensor
#: Most boxes that go into non-maximum suppression; its time grows with their square.
MAX_CANDIDATES = 4096
#: Score threshold of a model that does not bring its own.
DEFAULT_SCORE_THRESHOLD = 0.4


def total_of(values: torch.Tensor) -> torch.Tensor:
    """The sum (), finite when every value is: float64 holds that of any float32. A GPU makes it without being waited
    for."""
    return values.sum(dtype=torch.float64)


def expect_finite(name: str, total: torch.Tensor, values: torch.Tensor | None = None) -> None:
    """Raise OutputError unless `total`, on the CPU, is finite. values: whose total it is, to count the bad ones.

    Much quicker than to look at every value.
    """
    if not math.isfinite(float(total)):
        counted = "" if values is None else f": {int((~torch.isfinite(values)).sum())} of {values.numel()}"
        raise OutputError(f"{name} holds NaN or infinite values{counted}")


class TwoParts(Protocol):
    """A decoder in two parts, which together give what the decoder gives."""

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Raw outputs -> what of them is needed, on the same device; shapes do not depend on values."""
        ...

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Decoded:
        """What condense() gave, on the CPU, and the source image's (H, W). Raises OutputError as the decoder does."""
        ...


class Decoder:
    """Raw outputs of a network on the CPU and the source image's (H, W) -> Detections or Lanes.

    preprocess: how the image became the network's input. labels: class names by index. keep: names of the classes to
    report, empty: all. score_threshold (0..1; 0 stands for own_threshold, the model's own), iou_threshold (0..1) and
    max_detections may be set at any time; a call that is under way may still use the old values. Raises ValueError as
    :meth:`check_labels` does.
    """

    #: Name in the configuration.
    name: ClassVar[str]

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
        """Raise ValueError when `keep` names what is not in `labels`, or is not what this decoder needs."""
        unknown = [label for label in keep if label not in labels]
        if unknown:
            raise ValueError(f"keep = {list(keep)}: no class {unknown[0]!r}; allowed: {', '.join(labels)}")

    @property
    def score_threshold(self) -> float:
        """The threshold in effect: never the 0 that stands for the model's own."""
        return self._score_threshold

    @score_threshold.setter
    def score_threshold(self, value: float) -> None:
        self._score_threshold = value or self.own_threshold

    def __call__(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Decoded:
        """Decode one frame. Raises OutputError for a wrong number, shape or class count and for NaN or infinity."""
        self.check(outputs)
        for index, output in enumerate(outputs):
            # A sum in the output's own type is finite only if every value is, and takes a fifth of the time of one in
            # float64. It may also overflow: only that one tells then.
            if not math.isfinite(float(output.sum())):
                expect_finite(f"output {index}", total_of(output), output)
        return self.decode([output.float() for output in outputs], source_size)

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        """Raise OutputError unless number and shapes of the outputs are what this decoder reads."""
        raise NotImplementedError

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Decoded:
        """Decode outputs that were checked, float32."""
        raise NotImplementedError

    def in_two_parts(self) -> TwoParts | None:
        """The same in two parts, where the first is worth doing on the device that the outputs lie on."""
        return None

    def expect_outputs(self, outputs: Sequence[torch.Tensor], count: int) -> None:
        """Raise OutputError unless there are `count` outputs."""
        if len(outputs) != count:
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
            raise OutputError(
                f"decoder {self.name} reads {count} output(s), but the DNN returns {len(outputs)}: {shapes}"
            )

    def select(
        self,
        boxes: ArrayOrTensor,
        scores: ArrayOrTensor,
        class_ids: ArrayOrTensor,
        source_size: tuple[int, int],
    ) -> Detections:
        """Candidates (all classes, any order) -> kept classes, over the threshold, after NMS per class, clipped.

        boxes: (N, 4) float32 x1, y1, x2, y2 in input pixels. scores: (N,) float32. class_ids: (N,) int64. A decoder
        with many candidates leaves out those under the threshold itself, before it computes their boxes.
        """
        # For a few boxes a call into numpy takes a fraction of the time of one into PyTorch.
        all_boxes, all_scores, all_ids = np.asarray(boxes), np.asarray(scores), np.asarray(class_ids)
        chosen = all_scores >= self.score_threshold
        if self.kept:
            chosen &= np.isin(all_ids, self.kept)
        indices = np.flatnonzero(chosen)
        if len(indices) > MAX_CANDIDATES:
            indices = indices[np.argsort(-all_scores[indices], kind="stable")[:MAX_CANDIDATES]]
        found, found_scores, found_ids = all_boxes[indices], all_scores[indices], all_ids[indices]
        found = self.preprocess.geometry(source_size).to_source(found)
        if len(indices) > 1:
            tensors = (torch.from_numpy(array) for array in (found, found_scores, found_ids))
            first = batched_nms(*tensors, self.iou_threshold).numpy()
            found, found_scores, found_ids = found[first], found_scores[first], found_ids[first]
        return self.finish(found, found_scores, found_ids, source_size)

    def finish(
        self,
        boxes: npt.NDArray[np.float32],
        scores: npt.NDArray[np.float32],
        class_ids: npt.NDArray[np.int64],
        source_size: tuple[int, int],
    ) -> Detections:
        """Detections in source pixels, best first -> clipped to the image, those outside it left out, the best few."""
        height, width = source_size
        clipped = boxes.clip(0, np.array([width, height, width, height], np.float32))
        inside = np.flatnonzero((clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1]))
        inside = inside[: self.max_detections]
        return Detections(
            boxes=clipped[inside].astype(np.float32, copy=False),
            scores=scores[inside].astype(np.float32, copy=False),
            class_ids=class_ids[inside].astype(np.int64, copy=False),
            labels=self.labels,
        )
