"""Merges the results of overlapping tiles of an image. Does not import PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.results import Detections, Mask
from multi_dnn_ros.vision.view import Window

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

#: A box ends at an edge of its tile if it is at most this far from it: in pixels, or as a share of the tile.
_EDGE_PX, _EDGE = 1.0, 0.01


def merge_detections(
    parts: Sequence[Detections], windows: Sequence[Window], iou_threshold: float, max_detections: int
) -> Detections:
    """Detections of tiles, in pixels of the image -> those of the image, at most `max_detections`, best first.

    Two boxes of a class from different tiles are one object if they agree in the region that both tiles show: their
    intersection over union there is at least `iou_threshold`. The best of these boxes is reported or, if it ends at an
    edge beyond which the view continues, the bounding box of all of them. Non-maximum suppression per class follows.
    """
    boxes = np.concatenate([part.boxes for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    class_ids = np.concatenate([part.class_ids for part in parts])
    tiles = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cut = np.concatenate([_cut(part.boxes, window, windows) for part, window in zip(parts, windows, strict=True)])
    groups = _groups(boxes, class_ids, tiles, windows, iou_threshold)
    best, merged = [], []
    for group in groups:
        leader = group[int(scores[group].argmax())]
        best.append(leader)
        whole = np.concatenate([boxes[group, :2].min(0), boxes[group, 2:].max(0)])
        merged.append(whole if cut[leader] else boxes[leader])
    corners = np.array(merged, np.float32).reshape(-1, 4)
    values, ids = scores[best], class_ids[best]
    kept = _suppressed(corners, values, ids, iou_threshold, max_detections)
    return replace(parts[0], boxes=corners[kept], scores=values[kept], class_ids=ids[kept])


def merge_masks(parts: Sequence[Mask], windows: Sequence[Window], iou_threshold: float, max_detections: int) -> Mask:
    """Masks of tiles -> one mask of their common window, in the resolution of the tiles.

    The overlap of two tiles is divided in the middle. The other arguments have no effect.
    """
    lefts, tops = sorted({window.left for window in windows}), sorted({window.top for window in windows})
    height, width = windows[0].size
    rows, columns = parts[0].class_ids.shape
    column, x, across = _axis(lefts, width, columns)
    row, y, down = _axis(tops, height, rows)
    by_corner = {(window.top, window.left): part.class_ids for part, window in zip(parts, windows, strict=True)}
    tiles = np.array([[by_corner[top, left] for left in lefts] for top in tops])
    class_ids = tiles[row[:, None], column[None, :], y[:, None], x[None, :]]
    return replace(parts[0], class_ids=class_ids, window=Window(lefts[0], tops[0], across, down))


def _axis(starts: Sequence[int], length: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """For each value of the merged axis: its tile and its index there; then the length of the axis in pixels.

    starts: first pixel of each tile. length: of a tile in pixels. count: number of values of a tile.
    """
    whole = starts[-1] + length - starts[0]
    values = max(1, round(whole * count / length))
    center = starts[0] + (np.arange(values) + 0.5) * whole / values
    middles = [(after + before + length) / 2 for before, after in pairwise(starts)]
    tile = np.searchsorted(np.array(middles), center, side="right")
    index = np.floor((center - np.array(starts)[tile]) * count / length).astype(np.int64)
    return tile, index.clip(0, count - 1), whole


def _cut(boxes: Floats, window: Window, windows: Sequence[Window]) -> Bools:
    """(N,) whether a box ends at an edge of its tile beyond which the view continues."""
    near_x, near_y = max(_EDGE_PX, _EDGE * window.width), max(_EDGE_PX, _EDGE * window.height)
    found = np.zeros(len(boxes), bool)
    if window.left > min(other.left for other in windows):
        found |= boxes[:, 0] <= window.left + near_x
    if window.top > min(other.top for other in windows):
        found |= boxes[:, 1] <= window.top + near_y
    if window.right < max(other.right for other in windows):
        found |= boxes[:, 2] >= window.right - near_x
    if window.bottom < max(other.bottom for other in windows):
        found |= boxes[:, 3] >= window.bottom - near_y
    return found


def _groups(
    boxes: Floats,
    class_ids: npt.NDArray[np.int64],
    tiles: npt.NDArray[np.int64],
    windows: Sequence[Window],
    threshold: float,
) -> list[list[int]]:
    """The boxes of each object, by index. Boxes that agree most are joined first, and never two of one tile."""
    pairs: list[tuple[float, int, int]] = []
    for first in range(len(windows)):
        for second in range(first + 1, len(windows)):
            region = _common(windows[first], windows[second])
            if region is None:
                continue
            one, two = np.flatnonzero(tiles == first), np.flatnonzero(tiles == second)
            overlap = pairwise_iou(_inside(boxes[one], region), _inside(boxes[two], region))
            overlap[class_ids[one][:, None] != class_ids[two][None, :]] = 0.0
            for i, j in np.argwhere((overlap >= threshold) & (overlap > 0.0)):
                pairs.append((-float(overlap[i, j]), int(one[i]), int(two[j])))
    group_of = {index: [index] for index in range(len(boxes))}
    for _, i, j in sorted(pairs):
        one_group, other = group_of[i], group_of[j]
        if one_group is other or set(tiles[one_group]) & set(tiles[other]):
            continue
        one_group.extend(other)
        for index in other:
            group_of[index] = one_group
    return list({id(group): group for group in group_of.values()}.values())


def _common(one: Window, two: Window) -> Floats | None:
    """x1, y1, x2, y2 of the region that both windows show; None if there is none."""
    region = (max(one.left, two.left), max(one.top, two.top), min(one.right, two.right), min(one.bottom, two.bottom))
    return np.array(region, np.float32) if region[0] < region[2] and region[1] < region[3] else None


def _inside(boxes: Floats, region: Floats) -> Floats:
    """The parts of boxes (N, 4) in a region; empty ones have no area."""
    low, high = region[[0, 1, 0, 1]], region[[2, 3, 2, 3]]
    return np.asarray(boxes.clip(low, high), np.float32)


def pairwise_iou(one: Floats, two: Floats) -> Floats:
    """(N, 4), (M, 4) x1, y1, x2, y2 -> (N, M) intersection over union; 0 for boxes without an area."""
    low, high = np.maximum(one[:, None, :2], two[None, :, :2]), np.minimum(one[:, None, 2:], two[None, :, 2:])
    common = (high - low).clip(0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(-1) for boxes in (one, two)]
    union = areas[0][:, None] + areas[1][None, :] - common
    iou: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return iou


def _suppressed(
    boxes: Floats, scores: Floats, class_ids: npt.NDArray[np.int64], threshold: float, max_count: int
) -> list[int]:
    """Indices of the best `max_count` boxes that greedy non-maximum suppression per class keeps, best first.

    One kept box at a time is compared with the others: a table of all pairs would need gigabytes for the boxes of many
    tiles.
    """
    kept: list[int] = []
    remaining = np.argsort(-scores, kind="stable")
    while len(remaining) and len(kept) < max_count:
        best, remaining = remaining[0], remaining[1:]
        kept.append(int(best))
        overlap = pairwise_iou(boxes[[best]], boxes[remaining])[0]
        remaining = remaining[(overlap <= threshold) | (class_ids[remaining] != class_ids[best])]
    return kept
