"""Decodes lane segmentation to numbered lane lines with fitted curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.vision.decoders.base import Decoder, TwoParts, expect_finite, total_of
from multi_dnn_ros.vision.decoders.lane_lines import Runs, find_runs, group_runs
from multi_dnn_ros.vision.decoders.layout import POSSIBLE, Difference, Layout, Match, check_classes, match
from multi_dnn_ros.vision.decoders.maps import without_padding
from multi_dnn_ros.vision.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Lane, Lanes, OutputError

#: Wider masks are scaled down before lines are detected.
MAX_WIDTH = 640
#: Maximum number of lines: the mask is uint8 and 0 means none.
MAX_LANES = 255
#: Maximum number of points per line.
_POINTS = 48

#: c0, c1, c2 of u = c0 + c1 v + c2 v^2.
Curve = tuple[float, float, float]


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

    def in_two_parts(self) -> TwoParts | None:
        """With several classes, the first part reduces their maps to one. None if there is nothing to reduce."""
        return _LaneMap(self) if len(self.labels) > 1 and len(self.lane_classes) < len(self.labels) else None

    def decode_map(self, lane: torch.Tensor, source_size: tuple[int, int]) -> Any:
        """Map (h, w) float32 of logits of lane against background, on the CPU, and the source's (H, W) -> Lanes."""
        logits = self.content(lane.contiguous().numpy(), source_size)
        height, width = logits.shape
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        mask = (logits >= math.log(threshold / (1.0 - threshold))).view(np.uint8)
        # Close one-pixel gaps and holes, because each of them would end a piece.
        mask = np.asarray(cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8)), np.uint8)
        runs = find_runs(mask)
        scale = (source_size[1] / width, source_size[0] / height)
        found = []
        for line in group_runs(runs, width)[: min(self.max_detections, MAX_LANES)]:
            curve = _curve_in_source(line.curve, scale)
            rows = runs.row[line.members]
            ends = int(rows.min()), int(rows.max())
            found.append((_bottom_u(ends[1], curve, scale[1], source_size[0]), line.members, ends, curve))
        found.sort(key=lambda line: line[0])

        pixels, number_of_pixel = _pixels(runs, [members for _, members, _, _ in found], width)
        probability = 1.0 / (1.0 + np.exp(-logits.reshape(-1)[pixels].astype(np.float64)))
        index = number_of_pixel.astype(np.intp)  # otherwise each bincount would convert it
        score = np.bincount(index, probability) / np.maximum(np.bincount(index), 1)
        lanes = tuple(
            Lane(number, _points(ends, curve, scale[1], source_size), np.array(curve), float(score[number]))
            for number, (_, _, ends, curve) in enumerate(found, start=1)
        )
        numbers = np.zeros((height, width), np.uint8)
        numbers.reshape(-1)[pixels] = number_of_pixel
        return Lanes(numbers, lanes, source_size)

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
        """(h, w) map over the network's input -> the part that shows the source image of (H, W), without padding and at
        most MAX_WIDTH columns wide.
        """
        content = without_padding(logits, self.preprocess, source_size)
        if content.shape[1] > MAX_WIDTH:
            height = max(1, round(content.shape[0] * MAX_WIDTH / content.shape[1]))
            content = np.asarray(cv2.resize(content, (MAX_WIDTH, height), interpolation=cv2.INTER_AREA), np.float32)
        return content


class _LaneMap:
    """The two parts of `decoder`.

    On a GPU this saves copying the maps of all classes, up to 20 MB per frame, to the CPU.
    """

    def __init__(self, decoder: LaneDecoder) -> None:
        self._decoder = decoder

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """(1, classes, h, w) logits on any device -> lane against background (h, w), and the sum of all logits ()."""
        logits = outputs[0][0].float()
        return self._decoder.lane_logits(logits), total_of(logits)

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        """Result of condense(), on the CPU, and the source's (H, W) -> Lanes. OutputError for NaN or infinity."""
        lane, total = outputs
        expect_finite("output 0", total)
        return self._decoder.decode_map(lane, source_size)


def _pixels(
    runs: Runs, lines: Sequence[npt.NDArray[np.int64]], width: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Flat indices of the lines' pixels in a mask of `width` columns, ascending, and their line numbers, from 1."""
    number_of_run = np.zeros(len(runs.row), np.uint8)
    for number, members in enumerate(lines, start=1):
        number_of_run[members] = number
    chosen = np.flatnonzero(number_of_run)
    counts = (runs.end - runs.begin)[chosen]
    first = (runs.row * width + runs.begin)[chosen]
    pixels = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return pixels + np.arange(len(pixels)), np.repeat(number_of_run[chosen], counts)


def _curve_in_source(curve: npt.NDArray[np.float64], scale: tuple[float, float]) -> Curve:
    """Convert a curve from mask to source pixels. scale: source pixels per mask pixel, horizontal and vertical."""
    across, down = scale
    c0, c1, c2 = curve.tolist()
    shift = 0.5 / down - 0.5  # v of the mask = v of the source / down + shift
    at_origin, slope = c0 + c1 * shift + c2 * shift**2, (c1 + 2.0 * c2 * shift) / down
    return (at_origin + 0.5) * across - 0.5, slope * across, c2 / down**2 * across


def _points(ends: tuple[int, int], curve: Curve, down: float, source_size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """(K, 2) points u, v on the curve in source pixels, from the line's lowest row to its highest.

    Only points inside the image (0..W-1, 0..H-1) are returned; a curve may leave it between two dashes. ends: the
    line's first and last row in the mask. down: source pixels per mask row. source_size: (H, W).
    """
    height, width = source_size
    # Clamp: if the image has fewer rows than the mask, the centers of the mask's outer rows lie outside the image.
    high, low = (min(max((row + 0.5) * down - 0.5, 0.0), height - 1.0) for row in ends)
    count = min(_POINTS, ends[1] - ends[0] + 1)
    v = low + (high - low) / max(count - 1, 1) * np.arange(count)  # a third of the time of np.linspace
    v[-1] = high  # exactly
    c0, c1, c2 = curve
    u = c0 + v * (c1 + v * c2)
    inside = (u >= 0.0) & (u <= width - 1)
    if inside.any():
        u, v = u[inside], v[inside]
    else:  # a line along the image's edge whose center is outside
        u = np.clip(u, 0.0, width - 1)
    return np.array([u, v], np.float32).T.copy()


def _bottom_u(last_row: int, curve: Curve, down: float, height: int) -> float:
    """u where the line, extended along its tangent at the lowest point, meets the bottom row of the image.

    last_row: the line's lowest row in the mask. curve: in source pixels. down: source pixels per mask row. height: of
    the source image.
    """
    lowest = (last_row + 0.5) * down - 0.5
    c0, c1, c2 = curve
    return c0 + lowest * (c1 + lowest * c2) + (c1 + 2.0 * c2 * lowest) * (height - 1 - lowest)


def recognize(layout: Layout) -> Match | Difference:
    """Whether LaneDecoder reads such outputs: a map per class. Only the DNN's role can say that the maps show lanes."""
    found = match(layout, [(1, "classes", "h", "w")])
    if isinstance(found, Difference):
        return found
    classes = found.axes.get("classes", 0)
    if (wrong := check_classes(layout, classes)) is not None:
        return wrong
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
