"""What the networks' own programs make of raw outputs, written point by point from their definitions."""

from __future__ import annotations

import math

import numpy as np

#: Points u, v of one line, from the bottom up, and its score.
Line = tuple[list[tuple[float, float]], float]


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def ufldv2(
    outputs: list[np.ndarray], size: tuple[int, int], threshold: float, *, row_anchors: list[float], seen: float
) -> list[Line]:
    """size: (H, W) of the part of the image that the network sees, the lower `seen` of the whole. Places, in the order
    loc_row, loc_col, exist_row, exist_col; row_anchors: shares of the whole height."""
    loc_row, loc_col, exist_row, exist_col = (output[0].astype(np.float64) for output in outputs)
    height, width = size
    lines = []
    for lane in range(4):
        by_row = lane in (1, 2)
        places, exists = (loc_row, exist_row) if by_row else (loc_col, exist_col)
        cells, count, _ = places.shape
        there = [bool(exists[1, anchor, lane] > exists[0, anchor, lane]) for anchor in range(count)]
        if sum(there) <= count / (2 if by_row else 4):
            continue
        points, shares = [], []
        for anchor in (anchor for anchor in range(count) if there[anchor]):
            best = int(places[:, anchor, lane].argmax())
            near = range(max(0, best - 1), min(cells - 1, best + 1) + 1)
            weights = softmax([float(places[cell, anchor, lane]) for cell in near])
            place = (sum(cell * weight for cell, weight in zip(near, weights, strict=True)) + 0.5) / (cells - 1)
            if by_row:
                u, whole = place * width, row_anchors[anchor]
            else:
                u, whole = anchor / (count - 1) * width, place
            v = (whole - (1 - seen)) / seen * height  # of the whole image -> of its lower part
            if -1e-3 <= u <= width + 1e-3 and -1e-3 <= v <= height + 1e-3:
                points.append((u, v))
                shares.append(softmax([float(exists[0, anchor, lane]), float(exists[1, anchor, lane])])[1])
        if len(points) >= 3 and sum(shares) / len(shares) >= threshold:
            points.sort(key=lambda point: -point[1])
            inside = [(min(max(u, 0), width - 1), min(max(v, 0), height - 1)) for u, v in points]
            lines.append((inside, sum(shares) / len(shares)))
    return lines


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two candidates are one line: less than 50 pixels apart on average, of an input 800 wide."""
    starts = [int(row[2] * 71 + 0.5) for row in (one, other)]
    ends = [
        int(start + row[5] * 71 - 1 + 0.5 - (row[5] * 71 < 1)) for start, row in zip(starts, (one, other), strict=True)
    ]
    # A line that starts below the image shares no strip there. The original reads the six header values as columns.
    first, last = max(0, *starts), min(*ends, 71)
    if last < first:
        return False
    total = sum(abs(float(one[6 + k]) - float(other[6 + k])) * 799 for k in range(first, last + 1))
    return total < 50 * (last - first + 1)


def clrnet(outputs: list[np.ndarray], size: tuple[int, int], threshold: float, most: int) -> list[Line]:
    """size: (H, W) of the part of the image that the network sees. most: number of lines."""
    height, width = size
    rows = outputs[0][0].astype(np.float64)
    scored = [(softmax([float(row[0]), float(row[1])])[1], row) for row in rows]
    scored = sorted((one for one in scored if one[0] >= threshold), key=lambda one: -one[0])
    kept: list[tuple[float, np.ndarray]] = []
    for score, row in scored:
        if len(kept) < most and not any(_close(row, before) for _, before in kept):
            kept.append((score, row))
    lines = []
    for score, row in kept:
        x = [float(value) for value in row[6:]]
        start = min(max(0, round(row[2] * 71)), 71)
        end = min(start + round(row[5] * 71) - 1, 71)
        places = list(range(start, end + 1))
        place = start - 1
        while place >= 0 and 0 <= x[place] <= 1:  # down to the bottom, or to where it leaves the image
            places.append(place)
            place -= 1
        points = [
            (min(x[place] * width, width - 1), min((1 - place / 71) * height, height - 1))
            for place in sorted(places)
            if place <= end and 0 <= x[place] <= 1
        ]
        if len(points) >= 2:
            lines.append((points, score))
    return lines
