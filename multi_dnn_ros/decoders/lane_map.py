"""Maps of logits per class: lane lines and drivable area (one map, or those of TwinLiteNet)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.base import Decoder, Values, library, logsumexp
from multi_dnn_ros.decoders.lane_lines import Floats, Integers, Lines, Runs, find_runs, group_runs
from multi_dnn_ros.decoders.layout import EXACT, POSSIBLE, Difference, Layout, Pattern
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Lane, Lanes, Mask

#: Wider masks are scaled down before lines are detected.
MAX_WIDTH = 640
#: Maximum number of lines: the mask is uint8 and 0 means none.
MAX_LANES = 255
#: Maximum number of points per line.
_POINTS = 48


class MapDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> what the subclass makes of the logit of chosen classes against
    the others.

    One class: logit of it against background. Several: softmax logits; the chosen classes are those in `keep`, or the
    second of two. `iou_threshold` has no effect.
    """

    patterns: ClassVar[Sequence[Pattern]] = ((1, "classes", "h", "w"),)
    #: Word for the classes that `keep` names, for messages.
    noun: ClassVar[str] = ""

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **options)
        self.chosen_classes = self.kept or (len(labels) - 1,)

    @classmethod
    def check_labels(cls, labels: Sequence[str], keep: Sequence[str]) -> None:
        """As in the base class; with more than two classes, `keep` must name the chosen classes."""
        super().check_labels(labels, keep)
        if len(labels) > 2 and not keep:
            raise ValueError(
                f"keep = []: name the {cls.noun} class, or classes, among the {len(labels)}: {', '.join(labels)}"
            )
        if len(labels) > 1 and set(labels) <= set(keep):
            raise ValueError(
                f"keep = {list(keep)}: names all {len(labels)} classes as {cls.noun}; at least one must be background"
            )

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        """Only the DNN's role can say what the maps show."""
        return POSSIBLE, "a map per class"

    @property
    def logit_threshold(self) -> float:
        """The logit of the smallest probability that counts."""
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        return math.log(threshold / (1.0 - threshold))

    def maps(self, outputs: Sequence[Values]) -> Values:
        """(classes, h, w) logits among the outputs."""
        return outputs[0][0]

    def chosen_logits(self, logits: Values) -> Values:
        """(classes, h, w) logits, an array or a tensor -> (h, w) logit of the chosen classes against the others."""
        if len(logits) == 1:
            return logits[0]
        others = [index for index in range(len(logits)) if index not in self.chosen_classes]
        join = library(logits).concatenate
        chosen, rest = (join([logits[i : i + 1] for i in each]) for each in (self.chosen_classes, others))
        return logsumexp(chosen) - logsumexp(rest)

    def reduce(self, outputs: Sequence[Values]) -> tuple[Values, ...]:
        """The map (h, w) of the logits of the chosen classes, instead of one per class."""
        return (self.chosen_logits(self.maps(outputs)),)


class LaneDecoder(MapDecoder):
    """(1, classes, h, w) logits of any resolution -> Lanes, see MapDecoder.

    A pixel is lane if its probability is at least `score_threshold`. At most `max_detections` lines are reported, the
    longest ones, and never more than MAX_LANES.
    """

    name = "lane"
    signature = "(1, classes, h, w)"
    result_kind = "lanes"
    default_labels: ClassVar[tuple[str, ...]] = ("lane",)
    noun = "lane"

    def decode_reduced(self, reduced: Sequence[Any], source_size: tuple[int, int]) -> Lanes:
        (logits,) = reduced
        height, width = logits.shape
        if width > MAX_WIDTH:
            size = MAX_WIDTH, max(1, round(height * MAX_WIDTH / width))
            logits = np.asarray(cv2.resize(logits, size, interpolation=cv2.INTER_AREA))
        logits = without_padding(logits, self.preprocess, source_size)
        runs = find_runs((logits >= self.logit_threshold).view(np.uint8))
        found = group_runs(runs, source_size)
        count, down = min(len(found.curves), self.max_detections, MAX_LANES), source_size[0] / runs.height
        # From left to right, by where the tangent at each line's lowest row meets the bottom of the image.
        c0, c1, c2 = found.curves[:count].T
        lowest = (found.last_row[:count] + 0.5) * down - 0.5
        bottom_u = c0 + lowest * (c1 + lowest * c2) + (c1 + 2.0 * c2 * lowest) * (source_size[0] - 1 - lowest)
        order = bottom_u.argsort(kind="stable").tolist()
        pixels, number = _pixels(runs, found, order)
        numbers = np.zeros((runs.height, runs.width), np.uint8)
        numbers.reshape(-1)[pixels] = number
        values = np.maximum(logits.reshape(-1)[pixels], -80.0)  # of lower ones, exp() in float32 is infinite
        sums = np.bincount(number, 1.0 / (1.0 + np.exp(-values)), count + 1)
        scores = (sums / np.maximum(np.bincount(number, minlength=count + 1), 1)).tolist()
        lanes = []
        for index, line in enumerate(order, start=1):
            rows, curve = (int(found.first_row[line]), int(found.last_row[line])), found.curves[line]
            lanes.append(Lane(index, _points(rows, curve, down, source_size), curve, scores[index]))
        return Lanes(numbers, tuple(lanes), source_size)


class DrivableDecoder(MapDecoder):
    """(1, classes, h, w) logits of any resolution -> Mask with one class, see MapDecoder.

    A pixel is drivable if its probability is at least `score_threshold`, 0.5 if the parameter is 0. `max_detections`
    has no effect.
    """

    name = "drivable"
    signature = "(1, classes, h, w) logits: drivable area (TwinLiteNet), named by keep or the second of two"
    result_kind = "drivable_area"
    default_labels = ("none", "drivable")
    noun = "drivable"

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **{**options, "own_threshold": 0.5})

    def decode_reduced(self, reduced: Sequence[Any], source_size: tuple[int, int]) -> Mask:
        drivable = without_padding(reduced[0] >= self.logit_threshold, self.preprocess, source_size)
        return Mask(np.where(drivable, np.uint8(0), np.uint8(NO_CLASS)), ("drivable",), source_size)


class TwinLiteNetDecoder(LaneDecoder):
    """(1, 2, h, w) logits of the drivable area, then (1, 2, h, w) of lane lines, "none" first in both -> Lanes.

    github.com/chequanghuy/TwinLiteNet, arXiv:2307.10705. Decoder `drivable` reads the drivable area.
    """

    name = "twinlitenet"
    signature = "(1, 2, h, w) of the drivable area, (1, 2, h, w) of lane lines (TwinLiteNet)"
    patterns: ClassVar[Sequence[Pattern]] = ((1, "classes", "h", "w"), (1, "classes", "h", "w"))
    default_labels = ("none", "lane")

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        if axes["classes"] not in (0, 2):
            return Difference(f"two maps of {axes['classes']} classes; expected 2")
        return EXACT if layout.size == (axes["w"], axes["h"]) else POSSIBLE, "two maps of two classes"

    def maps(self, outputs: Sequence[Values]) -> Values:
        return [output for output in outputs if output.ndim == 4][-1][0]


def without_padding(values: npt.NDArray[Any], preprocess: Preprocess, source_size: tuple[int, int]) -> npt.NDArray[Any]:
    """The part of a map (h, w), of any resolution, that shows an image of (H, W); at least one value."""
    geometry = preprocess.geometry(source_size)
    across, down = values.shape[1] / preprocess.width, values.shape[0] / preprocess.height
    left, right = round(geometry.left * across), round((geometry.left + geometry.width) * across)
    top, bottom = round(geometry.top * down), round((geometry.top + geometry.height) * down)
    return values[top : max(bottom, top + 1), left : max(right, left + 1)]


def _pixels(runs: Runs, found: Lines, order: Sequence[int]) -> tuple[Integers, npt.NDArray[np.uint8]]:
    """The flat indices (N,) of the lines' pixels in the mask, and their numbers (N,): 1 for line order[0] and so on."""
    number_of_line = np.zeros(len(found.curves) + 1, np.uint8)  # the last one is for the runs of no line
    number_of_line[list(order)] = np.arange(1, len(order) + 1)
    number = number_of_line[found.of_run]
    chosen = np.flatnonzero(number)
    lengths = (runs.end - runs.begin)[chosen]
    begins = (runs.begin - runs.row)[chosen] + lengths - lengths.cumsum()  # less the number of pixels of earlier runs
    return begins.repeat(lengths) + np.arange(lengths.sum()), number[chosen].repeat(lengths)


def _points(rows: tuple[int, int], curve: Floats, down: float, source_size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """(K, 2) points u, v on a curve (3,), in source pixels, from its lowest row to its highest.

    Only points inside the image (0..W-1, 0..H-1) are returned; a curve may leave it between two dashes. rows: of the
    mask, the highest and the lowest. down: source pixels per mask row. source_size: (H, W).
    """
    height, width = source_size
    # Clip: if the image has fewer rows than the mask, the centers of the mask's outer rows lie outside the image.
    high, low = np.clip((np.array(rows) + 0.5) * down - 0.5, 0.0, height - 1.0)
    v = np.linspace(low, high, min(rows[1] - rows[0] + 1, _POINTS))
    u = curve[0] + v * (curve[1] + v * curve[2])
    inside = (u >= 0.0) & (u <= width - 1)
    inside |= not inside.any()  # the center of a line along the image's edge may be outside everywhere
    return np.asarray(np.stack([u.clip(0.0, width - 1), v], axis=1)[inside], np.float32)


SPEC = DecoderSpec.of(LaneDecoder, loss="multi_dnn_ros.training.losses:lane_loss")
DRIVABLE = DecoderSpec.of(DrivableDecoder, recognize=None)
TWINLITENET = DecoderSpec.of(TwinLiteNetDecoder)
