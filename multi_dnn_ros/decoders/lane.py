"""Decodes lane segmentation to numbered lane lines with fitted curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from multi_dnn_ros.decoders.base import Decoder, HostValue, TwoParts, expect_finite, total_of
from multi_dnn_ros.decoders.lane_lines import (
    Floats,
    Integers,
    Runs,
    find_runs,
    group_runs,
    reduce_to_runs,
)
from multi_dnn_ros.decoders.layout import POSSIBLE, Difference, Layout, Match, match_classes
from multi_dnn_ros.decoders.maps import content_of, without_padding
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Lane, Lanes, OutputError

#: Wider masks are scaled down before lines are detected.
MAX_WIDTH = 640
#: Maximum number of lines: the mask is uint8 and 0 means none.
MAX_LANES = 255
#: Maximum number of points per line.
_POINTS = 48


class LaneDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> Lanes.

    One class: logit of lane against background. Several: softmax logits; the lane classes are those in `keep`, or the
    second of two. A pixel is lane if its probability is at least `score_threshold`. At most `max_detections` lines are
    reported, the longest ones, and never more than MAX_LANES; `iou_threshold` has no effect.
    """

    name = "lane"
    #: Word for the classes that `keep` names, for messages.
    noun: ClassVar[str] = "lane"

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **options)
        self.lane_classes = self.kept or (len(labels) - 1,)

    @classmethod
    def check_labels(cls, labels: Sequence[str], keep: Sequence[str]) -> None:
        """As in the base class; with more than two classes, `keep` must name the lane classes."""
        super().check_labels(labels, keep)
        if len(labels) > 2 and not keep:
            raise ValueError(
                f"keep = []: name the {cls.noun} class, or classes, among the {len(labels)}: {', '.join(labels)}"
            )
        if len(labels) > 1 and set(labels) <= set(keep):
            raise ValueError(
                f"keep = {list(keep)}: names all {len(labels)} classes as {cls.noun}; at least one must be background"
            )

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        self.expect_outputs(outputs, 1)
        shape = tuple(outputs[0].shape)
        if len(shape) != 4 or shape[0] != 1 or shape[1] != len(self.labels) or min(shape) < 1:
            raise OutputError(
                f"output of shape {shape}, but decoder {self.name} with {len(self.labels)} class(es) reads "
                f"(1, {len(self.labels)}, h, w)"
            )

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        return self.decode_map(self.lane_logits(outputs[0][0]), source_size)

    def in_two_parts(self) -> TwoParts:
        """The first part finds the runs of lane pixels."""
        return _RunParts(self)

    @property
    def logit_threshold(self) -> float:
        """The logit of the smallest probability that counts as lane."""
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        return math.log(threshold / (1.0 - threshold))

    def decode_map(self, lane: torch.Tensor, source_size: tuple[int, int]) -> Any:
        """Map (h, w) float32 of logits of lane against background, on the CPU, and the source's (H, W) -> Lanes."""
        logits = self.content(lane.contiguous().numpy(), source_size)
        runs = find_runs((logits >= self.logit_threshold).view(np.uint8))

        def probabilities(chosen: Integers) -> Floats:
            pixels, begins = _pixels(runs, chosen)
            values = np.maximum(logits.reshape(-1).take(pixels), -80.0)  # of lower ones, exp() in float32 is infinite
            result: Floats = np.add.reduceat(1.0 / (1.0 + np.exp(-values)), begins)
            return result

        return self.lanes(runs, probabilities, source_size)

    def lanes(self, runs: Runs, probabilities: Callable[[Integers], Floats], source_size: tuple[int, int]) -> Lanes:
        """Lanes from the runs of the mask of an image of (H, W) pixels.

        probabilities: indices (K,) of runs -> (K,) sum of the probabilities of each run's pixels.
        """
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
        sums, sizes = (np.bincount(number, each, count + 1)[1:] for each in (probabilities(chosen), lengths))
        numbers.reshape(-1)[_pixels(runs, chosen)[0]] = number.astype(np.uint8).repeat(lengths)
        lanes = zip(range(1, count + 1), points, curves, (sums / sizes).tolist(), strict=True)
        return Lanes(numbers, tuple(Lane(*lane) for lane in lanes), source_size)

    def lane_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """(classes, h, w) float32 logits on any device -> (h, w) logit of the lane classes against the others.

        No shape depends on values, so it can be captured in a CUDA graph.
        """
        if len(logits) == 1:
            return logits[0]
        others = [index for index in range(len(logits)) if index not in self.lane_classes]
        lane, none = (torch.stack([logits[index] for index in classes]) for classes in (self.lane_classes, others))
        return torch.logsumexp(lane, 0) - torch.logsumexp(none, 0)

    def content(self, logits: npt.NDArray[np.float32], source_size: tuple[int, int]) -> npt.NDArray[np.float32]:
        """(h, w) map over the network's input -> the part that shows the source image of (H, W), without padding, of a
        map that is at most MAX_WIDTH columns wide.
        """
        height, width = logits.shape
        if width > MAX_WIDTH:
            size = (MAX_WIDTH, max(1, round(height * MAX_WIDTH / width)))
            logits = np.asarray(cv2.resize(logits, size, interpolation=cv2.INTER_AREA), np.float32)
        return without_padding(logits, self.preprocess, source_size)


class _RunParts:
    """The two parts of `decoder`. On a GPU this saves copying the maps, up to 20 MB per frame, to the CPU."""

    def __init__(self, decoder: LaneDecoder) -> None:
        self._decoder = decoder
        self._threshold = HostValue()
        self._shape = (0, 0)

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """(1, classes, h, w) logits on any device -> see reduce_to_runs, and the sum of all logits ()."""
        logits = outputs[0][0].float()
        lane = self._decoder.lane_logits(logits)
        height, width = lane.shape
        if width > MAX_WIDTH:
            size = (max(1, round(height * MAX_WIDTH / width)), MAX_WIDTH)
            lane = F.interpolate(lane[None, None], size, mode="area")[0, 0]
        self._shape = (lane.shape[0], lane.shape[1])
        self._threshold.set(self._decoder.logit_threshold)
        return *reduce_to_runs(lane, self._threshold.on(lane.device)), total_of(logits)

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Lanes:
        """Result of condense(), on the CPU, and the source's (H, W) -> Lanes. OutputError for NaN or infinity."""
        begin, end, sums, total = map(np.asarray, outputs)
        expect_finite("output 0", float(total))
        self._threshold.set(self._decoder.logit_threshold)  # for the next frame
        count = int(np.count_nonzero(end > begin))
        runs = Runs(begin[:count].astype(np.int64), end[:count].astype(np.int64), *self._shape)
        rows, columns = content_of(self._shape, self._decoder.preprocess, source_size)
        shares = sums[:count]
        if (rows.stop - rows.start, columns.stop - columns.start) != self._shape:
            runs, shares = _cropped(runs, shares, rows, columns)
        return self._decoder.lanes(runs, shares.take, source_size)


def _cropped(runs: Runs, sums: Floats, rows: slice, columns: slice) -> tuple[Runs, Floats]:
    """The part of the runs in these rows and columns, and the share of their sums of probabilities."""
    row, stride = runs.row, runs.width + 1
    begin = np.maximum(runs.begin - row * stride, columns.start) - columns.start
    end = np.minimum(runs.end - row * stride, columns.stop) - columns.start
    kept = np.flatnonzero((rows.start <= row) & (row < rows.stop) & (begin < end))
    height, width = rows.stop - rows.start, columns.stop - columns.start
    row = (row[kept] - rows.start) * (width + 1)
    share = (end - begin)[kept] / (runs.end - runs.begin)[kept]
    return Runs(row + begin[kept], row + end[kept], height, width), sums[kept] * share


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


def recognize(layout: Layout) -> Match | Difference:
    """Whether LaneDecoder reads such outputs: a map per class. Only the DNN's role can say that the maps show lanes."""
    found = match_classes(layout, [(1, "classes", "h", "w")])
    if isinstance(found, Difference):
        return found
    classes = found.axes.get("classes", 0)
    return Match(POSSIBLE, "a map per class", classes)


SPEC = DecoderSpec(
    "lane",
    LaneDecoder,
    signature="(1, classes, h, w)",
    result_kind="lanes",
    default_labels=("lane",),
    loss="multi_dnn_ros.training.decoder_losses:lane_loss",
    recognize=recognize,
)
