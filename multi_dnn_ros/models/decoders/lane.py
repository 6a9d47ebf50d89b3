"""Lane segmentation -> numbered lane lines with a fitted curve each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.models.decoders.base import Decoder
from multi_dnn_ros.models.decoders.lane_lines import Runs, find_runs, fit_curve, group_runs
from multi_dnn_ros.models.preprocess import Geometry, Preprocess
from multi_dnn_ros.models.results import Lane, Lanes, OutputError

#: Masks wider than this are scaled down before lines are looked for.
MAX_WIDTH = 640
#: Most lines: the mask is uint8 and 0 means none.
MAX_LANES = 255
_POINTS = 48


class LaneDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> Lanes.

    One class: its logit against none. Several: softmax logits; the lane classes are those that `keep` names, or the
    second of two. A pixel is lane where its probability is at least `score_threshold`. `max_detections` bounds the
    number of lines, the longest first; `iou_threshold` has no meaning here.
    """

    name = "lane"

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **options)
        if len(labels) > 2 and not self.kept:
            raise ValueError(f"keep = []: name the lane class(es) of {len(labels)}: {', '.join(labels)}")
        self._lane_classes = self.kept or (len(labels) - 1,)

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        self.expect_outputs(outputs, 1)
        shape = tuple(outputs[0].shape)
        if len(shape) != 4 or shape[0] != 1 or shape[1] != len(self.labels) or min(shape) < 1:
            raise OutputError(
                f"output of shape {shape}, but decoder lane with {len(self.labels)} class(es) reads "
                f"(1, {len(self.labels)}, h, w)"
            )

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Lanes:
        logits = self._lane_logits(outputs[0][0])
        place = self.preprocess.geometry(source_size)
        logits = self._content(logits, place)
        height, width = logits.shape
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        mask = (logits >= math.log(threshold / (1.0 - threshold))).astype(np.uint8)
        # Close one-pixel notches and holes: each would end a piece.
        mask = np.asarray(cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8)), np.uint8)
        runs = find_runs(mask.astype(bool))
        groups = group_runs(runs, width)[: min(self.max_detections, MAX_LANES)]
        scale = (source_size[1] / width, source_size[0] / height)
        found = [_line(runs, members, scale) for members in groups]
        order = sorted(range(len(found)), key=lambda index: _bottom_u(*found[index], source_size[0]))

        number_of_run = np.zeros(len(runs.row), np.uint8)
        for number, index in enumerate(order, start=1):
            number_of_run[groups[index]] = number
        numbers = np.zeros((height, width), np.uint8)
        numbers[mask.astype(bool)] = np.repeat(number_of_run, runs.end - runs.begin)
        lanes = []
        for number, index in enumerate(order, start=1):
            curve, points = found[index]
            probability = 1.0 / (1.0 + np.exp(-logits[numbers == number].astype(np.float64)))
            lanes.append(Lane(number, points, curve, float(probability.mean())))
        drawn = cv2.resize(numbers, source_size[::-1], interpolation=cv2.INTER_NEAREST)
        return Lanes(np.asarray(drawn, np.uint8), tuple(lanes))

    def _lane_logits(self, logits: torch.Tensor) -> npt.NDArray[np.float32]:
        if len(logits) > 1:
            lane = torch.zeros(len(logits), dtype=torch.bool)
            lane[list(self._lane_classes)] = True
            if bool(lane.all()):
                raise OutputError(f"keep names all {len(logits)} classes as lane; at least one must be background")
            logits = torch.logsumexp(logits[lane], 0) - torch.logsumexp(logits[~lane], 0)
        else:
            logits = logits[0]
        array: npt.NDArray[np.float32] = logits.contiguous().numpy()
        return array

    def _content(self, logits: npt.NDArray[np.float32], place: Geometry) -> npt.NDArray[np.float32]:
        """The part of the map that shows the image, without padding, at most MAX_WIDTH wide."""
        across, down = logits.shape[1] / self.preprocess.width, logits.shape[0] / self.preprocess.height
        left, right = round(place.left * across), round((place.left + place.width) * across)
        top, bottom = round(place.top * down), round((place.top + place.height) * down)
        content = logits[top : max(bottom, top + 1), left : max(right, left + 1)]
        if content.shape[1] > MAX_WIDTH:
            height = max(1, round(content.shape[0] * MAX_WIDTH / content.shape[1]))
            content = np.asarray(cv2.resize(content, (MAX_WIDTH, height), interpolation=cv2.INTER_AREA), np.float32)
        return content


Line = tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]


def _line(runs: Runs, members: npt.NDArray[np.int64], scale: tuple[float, float]) -> Line:
    """Curve and points, bottom up, of one line in source pixels."""
    u = ((runs.center[members] + 0.5) * scale[0] - 0.5).astype(np.float64)
    v = ((runs.row[members] + 0.5) * scale[1] - 0.5).astype(np.float64)
    curve = fit_curve(v, u, bend=bool(np.ptp(runs.row[members]) >= 16))
    at = np.linspace(v.max(), v.min(), min(_POINTS, len(np.unique(v))))
    points = np.stack([np.polynomial.polynomial.polyval(at, curve), at], axis=1)
    return curve, points.astype(np.float32)


def _bottom_u(curve: npt.NDArray[np.float64], points: npt.NDArray[np.float32], height: int) -> float:
    """Where the line meets the bottom of the image, straight on from its lowest point."""
    u, v = float(points[0, 0]), float(points[0, 1])
    return float(u + (curve[1] + 2.0 * curve[2] * v) * (height - 1 - v))
