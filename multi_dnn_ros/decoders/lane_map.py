"""Maps of logits per class: lane lines and drivable area (one map, or those of TwinLiteNet)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.arrays import Values, joined, logsumexp
from multi_dnn_ros.decoders.base import Decoder, TwoParts, expect_finite
from multi_dnn_ros.decoders.lane_lines import Floats, Integers, Runs, find_runs, group_runs
from multi_dnn_ros.decoders.layout import EXACT, POSSIBLE, Difference, Layout, Match, Pattern, match, match_classes
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Lane, Lanes, Mask, OutputError

if TYPE_CHECKING:
    from torch import Tensor

Map = npt.NDArray[np.float32]

#: Wider masks are scaled down before lines are detected.
MAX_WIDTH = 640
#: Maximum number of lines: the mask is uint8 and 0 means none.
MAX_LANES = 255
#: Maximum number of points per line.
_POINTS = 48


class MapDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> what :meth:`decode_map` makes of the logit of chosen classes
    against the others.

    One class: logit of it against background. Several: softmax logits; the chosen classes are those in `keep`, or the
    second of two. `iou_threshold` has no effect.
    """

    signature = "(1, classes, h, w)"
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
    def recognize(cls, layout: Layout) -> Match | Difference:
        """A map per class. Only the DNN's role can say what the maps show."""
        found = match_classes(layout, cls.patterns)
        return found if isinstance(found, Difference) else Match(POSSIBLE, "a map per class", found.axes["classes"])

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
        chosen, rest = (joined([logits[i : i + 1] for i in each]) for each in (self.chosen_classes, others))
        return logsumexp(chosen) - logsumexp(rest)

    def decode(self, outputs: Sequence[Map], source_size: tuple[int, int]) -> Any:
        return self.decode_map(self.chosen_logits(self.maps(outputs)), source_size)

    def decode_map(self, logits: Map, source_size: tuple[int, int]) -> Any:
        """Map (h, w) of logits of the chosen classes, and the source's (H, W) -> result."""
        raise NotImplementedError

    def in_two_parts(self) -> TwoParts:
        """The first part leaves one map instead of one per class."""
        return TwoParts(self.reduce, self.decode_reduced)

    def reduce(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw outputs on any device -> the map (h, w) of the logits of the chosen classes."""
        return (self.chosen_logits(self.maps(outputs).float()),)

    def decode_reduced(self, reduced: Sequence[Values], source_size: tuple[int, int]) -> Any:
        """Result of reduce(), on the CPU, and the source's (H, W) -> result. OutputError for NaN or infinity."""
        logits = np.asarray(reduced[0])
        expect_finite("the outputs", float(logits.sum(dtype=np.float64)))
        return self.decode_map(logits, source_size)


class LaneDecoder(MapDecoder):
    """(1, classes, h, w) logits of any resolution -> Lanes, see MapDecoder.

    A pixel is lane if its probability is at least `score_threshold`. At most `max_detections` lines are reported, the
    longest ones, and never more than MAX_LANES.
    """

    name = "lane"
    noun = "lane"

    def decode_map(self, logits: Map, source_size: tuple[int, int]) -> Lanes:
        height, width = logits.shape
        if width > MAX_WIDTH:
            logits = np.asarray(cv2.resize(logits, _reduced_size(height, width)[::-1], interpolation=cv2.INTER_AREA))
        logits = np.ascontiguousarray(without_padding(logits, self.preprocess, source_size))
        runs = find_runs((logits >= self.logit_threshold).view(np.uint8))
        found = group_runs(runs)
        numbers = np.zeros((runs.height, runs.width), np.uint8)
        count = min(len(found.curves), self.max_detections, MAX_LANES)
        if not count:
            return Lanes(numbers, (), source_size)
        scale = (source_size[1] / runs.width, source_size[0] / runs.height)
        curves = _curves_in_source(found.curves[:count], scale)
        # From left to right.
        order = _bottom_u(found.last_row[:count], curves, scale[1], source_size[0]).argsort(kind="stable")
        curves = curves[order]
        points = _points(found.first_row[order], found.last_row[order], curves, scale[1], source_size)

        number_of_line = np.zeros(len(found.curves) + 1, np.intp)  # the last one is for the runs of no line
        number_of_line[order] = np.arange(1, count + 1)
        number_of_run = number_of_line[found.of_run]
        chosen = np.flatnonzero(number_of_run)
        number, lengths = number_of_run[chosen], (runs.end - runs.begin)[chosen]
        pixels, begins = _pixels(runs, chosen)
        values = np.maximum(logits.reshape(-1).take(pixels), -80.0)  # of lower ones, exp() in float32 is infinite
        probability = np.add.reduceat(1.0 / (1.0 + np.exp(-values)), begins)  # the sum of each run's pixels
        sums, sizes = (np.bincount(number, each, count + 1)[1:] for each in (probability, lengths))
        numbers.reshape(-1)[pixels] = number.astype(np.uint8).repeat(lengths)
        lanes = zip(range(1, count + 1), points, curves, (sums / sizes).tolist(), strict=True)
        return Lanes(numbers, tuple(Lane(*lane) for lane in lanes), source_size)

    def reduce(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        from torch.nn import functional as F

        (logits,) = super().reduce(outputs)
        height, width = logits.shape
        if width > MAX_WIDTH:
            logits = F.interpolate(logits[None, None], _reduced_size(height, width), mode="area")[0, 0]
        return (logits,)


class DrivableDecoder(MapDecoder):
    """(1, classes, h, w) logits of any resolution -> Mask with one class, see MapDecoder.

    A pixel is drivable if its probability is at least `score_threshold`, 0.5 if the parameter is 0. `max_detections`
    has no effect.
    """

    name = "drivable"
    noun = "drivable"

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **{**options, "own_threshold": 0.5})

    def decode_map(self, logits: Map, source_size: tuple[int, int]) -> Mask:
        drivable = without_padding(logits >= self.logit_threshold, self.preprocess, source_size)
        return Mask(np.where(drivable, np.uint8(0), np.uint8(NO_CLASS)), ("drivable",), source_size)


class TwinLiteNetDecoder(LaneDecoder):
    """(1, 2, h, w) logits of the drivable area, then (1, 2, h, w) of lane lines, "none" first in both -> Lanes.

    github.com/chequanghuy/TwinLiteNet, arXiv:2307.10705. Decoder `drivable` reads the drivable area.
    """

    name = "twinlitenet"
    signature = "(1, 2, h, w) twice"
    patterns = ((1, 2, "h", "w"), (1, 2, "h", "w"))
    #: The map that is decoded, by its number among the maps.
    map_number: ClassVar[int] = 1

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """Two maps of two classes, of the same size."""
        found = match(layout, cls.patterns)
        if isinstance(found, Difference):
            return found
        whole = layout.size == (found.axes.get("w", 0), found.axes.get("h", 0))
        return Match(EXACT if whole else POSSIBLE, "two maps of two classes")

    def check(self, outputs: Sequence[Values]) -> None:
        super().check(outputs)
        if len(self.labels) != 2:
            raise OutputError(
                f"decoder {self.name} needs 2 class names, none and {self.noun}; labels has {len(self.labels)}"
            )

    def maps(self, outputs: Sequence[Values]) -> Values:
        return [output for output in outputs if output.ndim == 4][self.map_number][0]


def without_padding(values: npt.NDArray[Any], preprocess: Preprocess, source_size: tuple[int, int]) -> npt.NDArray[Any]:
    """The part of a map (h, w), of any resolution, that shows an image of (H, W); at least one value."""
    geometry = preprocess.geometry(source_size)
    across, down = values.shape[1] / preprocess.width, values.shape[0] / preprocess.height
    left, right = round(geometry.left * across), round((geometry.left + geometry.width) * across)
    top, bottom = round(geometry.top * down), round((geometry.top + geometry.height) * down)
    return values[top : max(bottom, top + 1), left : max(right, left + 1)]


def _reduced_size(height: int, width: int) -> tuple[int, int]:
    """The size of a map that is too wide, with MAX_WIDTH columns."""
    return max(1, round(height * MAX_WIDTH / width)), MAX_WIDTH


def _pixels(runs: Runs, chosen: Integers) -> tuple[Integers, Integers]:
    """The pixels of chosen runs (K,): their flat indices in the mask, ascending, and where each run begins in these."""
    counts = (runs.end - runs.begin)[chosen]
    begins = counts.cumsum() - counts
    pixels = ((runs.begin - runs.row)[chosen] - begins).repeat(counts)
    return pixels + np.arange(len(pixels)), begins


def _curves_in_source(curves: Floats, scale: tuple[float, float]) -> Floats:
    """Convert curves (L, 3) from mask to source pixels. scale: source pixels per mask pixel, across and down."""
    across, down = scale
    c0, c1, c2 = curves.T
    shift = 0.5 / down - 0.5  # v of the mask = v of the source / down + shift
    at_origin, slope = c0 + c1 * shift + c2 * shift**2, (c1 + 2.0 * c2 * shift) / down
    return np.array([(at_origin + 0.5) * across - 0.5, slope * across, c2 / down**2 * across]).T.copy()


def _points(
    first_row: Integers,
    last_row: Integers,
    curves: Floats,
    down: float,
    source_size: tuple[int, int],
) -> list[npt.NDArray[np.float32]]:
    """For each of L lines, (K, 2) points u, v on the curve in source pixels, from its lowest row to its highest.

    Only points inside the image (0..W-1, 0..H-1) are returned; a curve may leave it between two dashes. first_row,
    last_row: (L,) rows of the mask. curves: (L, 3) in source pixels. down: source pixels per mask row. source_size:
    (H, W).
    """
    height, width = source_size
    # Clamp: if the image has fewer rows than the mask, the centers of the mask's outer rows lie outside the image.
    ends = (np.array([first_row, last_row])[:, :, None] + 0.5) * down - 0.5
    high, low = np.minimum(np.maximum(ends, 0.0), height - 1.0)
    last = np.minimum(last_row - first_row, _POINTS - 1)[:, None]  # index of each line's last point
    index = np.arange(_POINTS)
    exists = index <= last
    v = np.where(index < last, low + (high - low) / np.maximum(last, 1) * index, high)
    c0, c1, c2 = curves.T[:, :, None]
    u = c0 + v * (c1 + v * c2)
    inside = exists & (u >= 0.0) & (u <= width - 1)
    # The center of a line along the image's edge may be outside everywhere.
    chosen = np.where(inside.any(axis=1, keepdims=True), inside, exists)
    points = np.empty((np.count_nonzero(chosen), 2), np.float32)
    points[:, 0] = np.minimum(np.maximum(u[chosen], 0.0), width - 1)
    points[:, 1] = v[chosen]
    ends_of_lines = chosen.sum(axis=1).cumsum().tolist()
    return [points[begin:end] for begin, end in zip([0, *ends_of_lines], ends_of_lines, strict=False)]


def _bottom_u(last_row: Integers, curves: Floats, down: float, height: int) -> Floats:
    """(L,) u where each line, extended along its tangent at the lowest point, meets the bottom row of the image.

    last_row: (L,) the lines' lowest rows in the mask. curves: (L, 3) in source pixels. down: source pixels per mask
    row. height: of the source image.
    """
    lowest = (last_row + 0.5) * down - 0.5
    c0, c1, c2 = curves.T
    result: Floats = c0 + lowest * (c1 + lowest * c2) + (c1 + 2.0 * c2 * lowest) * (height - 1 - lowest)
    return result


SPEC = DecoderSpec.of(
    LaneDecoder,
    result_kind="lanes",
    default_labels=("lane",),
    loss="multi_dnn_ros.training.losses:lane_loss",
)
DRIVABLE = DecoderSpec.of(
    DrivableDecoder,
    "(1, classes, h, w) logits: drivable area (TwinLiteNet), named by keep or the second of two",
    result_kind="drivable_area",
    default_labels=("none", "drivable"),
    recognize=None,
)
TWINLITENET = DecoderSpec.of(
    TwinLiteNetDecoder,
    "(1, 2, h, w) of the drivable area, (1, 2, h, w) of lane lines (TwinLiteNet)",
    result_kind="lanes",
    default_labels=("none", "lane"),
)
