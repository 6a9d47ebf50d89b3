"""How far two DNNs agree on the same images: compares their boxes or their lane lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.results import Detections, Lane, Lanes

#: Boxes of one class with at least this intersection over union are the same object.
MIN_IOU = 0.5
#: Lines are the same if their mean distance is at most this share of the image's width: 3 pixels at a width of 320.
MAX_DISTANCE = 3 / 320


class Agreement(NamedTuple):
    """Numbers of results: those that both DNNs have, all of the first DNN, all of the second."""

    both: int = 0
    first: int = 0
    second: int = 0

    def plus(self, other: Agreement) -> Agreement:
        """The sum of the two, number by number."""
        return Agreement(self.both + other.both, self.first + other.first, self.second + other.second)

    @property
    def share(self) -> float:
        """The F1 score, 2 * both / (first + second), 0..1; 1 if neither DNN has a result."""
        total = self.first + self.second
        return 2 * self.both / total if total else 1.0


def compare_detections(first: Detections, second: Detections) -> Agreement:
    """Pair boxes with the same class name and at least MIN_IOU, largest overlap first; a box is in one pair at most."""
    overlaps = _ious(first.boxes, second.boxes)
    names = [[found.labels[class_id] for class_id in found.class_ids] for found in (first, second)]
    same = np.array([[one == other for other in names[1]] for one in names[0]], bool).reshape(overlaps.shape)
    return Agreement(_pairs(np.where(same, -overlaps, 0.0), -MIN_IOU), len(first), len(second))


def compare_lanes(first: Lanes, second: Lanes) -> Agreement:
    """Pair lines whose mean distance over the rows that they share is at most MAX_DISTANCE of the width."""
    width = (first.size or first.numbers.shape)[1]
    distances = np.array([[_distance(one, other) for other in second.lanes] for one in first.lanes], np.float64)
    distances = distances.reshape(len(first.lanes), len(second.lanes))
    return Agreement(_pairs(distances, MAX_DISTANCE * width), len(first.lanes), len(second.lanes))


def _pairs(cost: npt.NDArray[np.floating], max_cost: float) -> int:
    """Number of pairs (row, column) that cost at most `max_cost`, cheapest first; each row and column in one pair."""
    rows, columns, count = set[int](), set[int](), 0
    for index in np.argsort(cost, axis=None, kind="stable").tolist():
        row, column = divmod(index, cost.shape[1])
        if cost[row, column] > max_cost:
            break
        if row not in rows and column not in columns:
            rows.add(row)
            columns.add(column)
            count += 1
    return count


def _ious(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(N, M) intersection over union of boxes (N, 4) and (M, 4)."""
    one, other = first.astype(np.float64)[:, None], second.astype(np.float64)[None]
    sides = (np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])).clip(min=0)
    common = sides[..., 0] * sides[..., 1]
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (one, other)]
    shares: npt.NDArray[np.float64] = common / np.maximum(areas[0] + areas[1] - common, 1e-9)
    return shares


@dataclass(frozen=True)
class _Span:
    """The rows of a line, from the upper end to the lower, and its columns there."""

    v: npt.NDArray[np.float32]
    u: npt.NDArray[np.float32]


def _distance(one: Lane, other: Lane) -> float:
    """Mean horizontal distance over the shared rows; infinite if these are less than half of the shorter line."""
    spans = []
    for lane in (one, other):
        order = np.argsort(lane.points[:, 1], kind="stable")
        spans.append(_Span(lane.points[order, 1], lane.points[order, 0]))
    top, bottom = max(span.v[0] for span in spans), min(span.v[-1] for span in spans)
    shortest = min(float(span.v[-1] - span.v[0]) for span in spans)
    if bottom < top or float(bottom - top) < 0.5 * shortest:
        return np.inf
    v = np.linspace(top, bottom, 32)
    first, second = (np.interp(v, span.v, span.u) for span in spans)
    return float(np.abs(first - second).mean())
