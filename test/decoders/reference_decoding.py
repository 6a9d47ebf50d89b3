"""Detections decoded one candidate at a time, in plain Python, as the papers define it; and random raw outputs.

Nothing here calls the package, except to hold parameters (Preprocess).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from multi_dnn_ros.vision.preprocess import Preprocess

#: x1, y1, x2, y2 in input pixels, score, class.
Candidate = tuple[float, float, float, float, float, int]


@dataclass(frozen=True)
class Options:
    threshold: float = 0.3
    iou: float = 0.4801
    most: int = 100
    kept: tuple[int, ...] = ()


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def best_of(scores: Sequence[float]) -> tuple[float, int]:
    best = max(range(len(scores)), key=lambda index: (scores[index], -index))
    return scores[best], best


def centered(cx: float, cy: float, w: float, h: float) -> tuple[float, float, float, float]:
    w, h = max(w, 0.0), max(h, 0.0)
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def overlap(a: Candidate, b: Candidate) -> float:
    across = min(a[2], b[2]) - max(a[0], b[0])
    down = min(a[3], b[3]) - max(a[1], b[1])
    if across <= 0 or down <= 0:
        return 0.0
    both = across * down
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def to_source(box: Sequence[float], preprocess: Preprocess, height: int, width: int) -> list[float]:
    if preprocess.fit == "stretch":
        inside_w, inside_h, left, top = preprocess.width, preprocess.height, 0, 0
    else:
        ratio = min(preprocess.width / width, preprocess.height / height)
        inside_w = min(preprocess.width, max(1, round(width * ratio)))
        inside_h = min(preprocess.height, max(1, round(height * ratio)))
        left = (preprocess.width - inside_w) // 2 if preprocess.centered else 0
        top = (preprocess.height - inside_h) // 2 if preprocess.centered else 0
    x1, y1, x2, y2 = box[:4]
    return [(x1 - left) * width / inside_w, (y1 - top) * height / inside_h,
            (x2 - left) * width / inside_w, (y2 - top) * height / inside_h]  # fmt: skip


def detections(
    candidates: Sequence[Candidate], preprocess: Preprocess, size: tuple[int, int], options: Options, suppress: bool
) -> list[Candidate]:
    """Candidates in the order of the outputs -> what is reported, in source pixels, best first."""
    height, width = size
    found = [one for one in candidates if one[4] >= options.threshold and (not options.kept or one[5] in options.kept)]
    found.sort(key=lambda one: -one[4])  # stable
    found = [(*to_source(one, preprocess, height, width), one[4], one[5]) for one in found]
    if suppress:
        left: list[Candidate] = []
        for one in found:
            if all(other[5] != one[5] or overlap(other, one) <= options.iou for other in left):
                left.append(one)
        found = left
    clipped = []
    for x1, y1, x2, y2, score, number in found:
        x1, x2 = (min(max(x, 0.0), float(width)) for x in (x1, x2))
        y1, y2 = (min(max(y, 0.0), float(height)) for y in (y1, y2))
        if x2 > x1 and y2 > y1:
            clipped.append((x1, y1, x2, y2, score, number))
    return clipped[: options.most]


def cells_of(size: tuple[int, int], strides: Sequence[int]) -> list[tuple[int, int, int]]:
    """(column, row, stride) of every cell, feature map by feature map."""
    width, height = size
    return [
        (column, row, stride)
        for stride in strides
        for row in range(math.ceil(height / stride))
        for column in range(math.ceil(width / stride))
    ]


@dataclass(frozen=True)
class Case:
    """A layout. make: (generator, size, classes) -> raw outputs. read: (outputs, size) -> candidates. suppress: whether
    NMS follows. background: whether the first class is one, which is not reported."""

    make: Callable[[np.random.Generator, tuple[int, int], int], list[np.ndarray]]
    read: Callable[[list[np.ndarray], tuple[int, int]], list[Candidate]]
    suppress: bool = True
    background: bool = False

    def outputs(self, seed: int, size: tuple[int, int], classes: int) -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in self.make(np.random.default_rng(seed), size, classes)]


def probabilities(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """In steps of 1/16, so that scores tie; most are small."""
    return (np.floor(16 * rng.random(shape) ** 3) / 16).astype(np.float32)


def centers(rng: np.random.Generator, count: int, width: float, height: float) -> np.ndarray:
    """(count, 4) cx, cy, w, h: many of them at the borders or beyond, some of negative size."""
    scale = np.array([width, height, width, height])
    share = rng.random((count, 4)) * [1.4, 1.4, 0.7, 0.7] - [0.2, 0.2, 0.05, 0.05]
    return (share * scale).astype(np.float32)


def yolov5(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    count = 3 * len(cells_of(size, (8, 16, 32)))
    rows = np.concatenate([centers(rng, count, *size), probabilities(rng, count, 1 + classes)], 1)
    return [rows[None]]


def read_yolov5(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    found = []
    for row in outputs[0][0]:
        score, number = best_of([row[4] * value for value in row[5:]])
        found.append((*centered(*map(float, row[:4])), float(score), number))
    return found


def yolox(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    count = len(cells_of(size, (8, 16, 32)))
    rows = np.concatenate([rng.normal(0, 1, (count, 4)).astype(np.float32), probabilities(rng, count, 1 + classes)], 1)
    return [rows[None]]


def read_yolox(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    found = []
    for row, (column, line, stride) in zip(outputs[0][0], cells_of(size, (8, 16, 32)), strict=True):
        x, y, w, h = map(float, row[:4])
        score, number = best_of([row[4] * value for value in row[5:]])
        box = centered((x + column) * stride, (y + line) * stride, math.exp(w) * stride, math.exp(h) * stride)
        found.append((*box, float(score), number))
    return found


def masks(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    count = len(cells_of(size, (8, 16, 32)))
    rest = rng.normal(0, 9, (count, 32)).astype(np.float32)
    rows = np.concatenate([centers(rng, count, *size), probabilities(rng, count, classes), rest], 1)
    return [np.ascontiguousarray(rows.T)[None], rng.random((1, 32, 8, 8)).astype(np.float32)]


def read_masks(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    found = []
    for row in outputs[0][0].T:
        score, number = best_of(list(row[4:-32]))
        found.append((*centered(*map(float, row[:4])), float(score), number))
    return found


def distances(numbers: np.ndarray) -> list[float]:
    """Four expectations of 8 bins."""
    return [
        sum(place * share for place, share in enumerate(softmax([float(value) for value in side])))
        for side in numbers.reshape(4, 8)
    ]


def read_distances(
    scores: np.ndarray, numbers: np.ndarray, places: Sequence[tuple[int, int, int]], offset: float
) -> list[Candidate]:
    found = []
    for row, side, (column, line, stride) in zip(scores, numbers, places, strict=True):
        left, top, right, bottom = (stride * distance for distance in distances(side))
        x, y = (column + offset) * stride, (line + offset) * stride
        score, number = best_of(list(row))
        found.append((x - left, y - top, x + right, y + bottom, float(score), number))
    return found


def nanodet(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    counts = [len(cells_of(size, (stride,))) for stride in (8, 16, 32)]
    scores = [probabilities(rng, 1, count, classes) for count in counts]
    return [*scores, *(rng.normal(0, 3, (1, count, 32)).astype(np.float32) for count in counts)]


def read_nanodet(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    scores, numbers = (np.concatenate([output[0] for output in part]) for part in (outputs[:3], outputs[3:]))
    return read_distances(scores, numbers, cells_of(size, (8, 16, 32)), 0.5)


def picodet(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    counts = [len(cells_of(size, (stride,))) for stride in (8, 16, 32, 64)]
    scores = [probabilities(rng, 1, count, classes) for count in counts]
    return [*scores, *(rng.normal(0, 3, (1, count, 32)).astype(np.float32) for count in counts)]


def read_picodet(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    scores, numbers = (np.concatenate([output[0] for output in part]) for part in (outputs[:4], outputs[4:]))
    return read_distances(scores, numbers, cells_of(size, (8, 16, 32, 64)), 0.5)


def nanodet_plus(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    count = len(cells_of(size, (8, 16, 32, 64)))
    rows = [probabilities(rng, 1, count, classes), rng.normal(0, 3, (1, count, 32)).astype(np.float32)]
    return [np.concatenate(rows, 2)]


def read_nanodet_plus(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    rows = outputs[0][0]
    return read_distances(rows[:, :-32], rows[:, -32:], cells_of(size, (8, 16, 32, 64)), 0.0)


ROWS = {
    "yolov5": Case(yolov5, read_yolov5),
    "yolox": Case(yolox, read_yolox),
    "yolo_masks": Case(masks, read_masks),
    "nanodet": Case(nanodet, read_nanodet),
    "picodet": Case(picodet, read_picodet),
    "nanodet_plus": Case(nanodet_plus, read_nanodet_plus),
}
