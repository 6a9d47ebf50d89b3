"""As reference_decoding: transformers, exports that choose their boxes, and SSD."""

from __future__ import annotations

import numpy as np
from reference_decoding import Candidate, Case, best_of, centered, centers, probabilities, sigmoid, softmax

_QUERIES = 40


def corners(rng: np.random.Generator, count: int, width: float, height: float) -> np.ndarray:
    rows = centers(rng, count, width, height)
    return np.array([centered(*map(float, row)) for row in rows], np.float32).reshape(count, 4)


def end_to_end(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    boxes, scores = corners(rng, _QUERIES, *size), probabilities(rng, _QUERIES, 1)
    numbers = rng.integers(0, classes, (_QUERIES, 1)).astype(np.float32)
    return [np.concatenate([boxes, scores, numbers], 1)[None]]


def read_end_to_end(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    return [(*map(float, row[:5]), int(row[5])) for row in outputs[0][0]]


def rtdetr(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    return [np.concatenate([centers(rng, _QUERIES, 1, 1), probabilities(rng, _QUERIES, classes)], 1)[None]]


def scaled(row: np.ndarray, size: tuple[int, int]) -> tuple[float, float, float, float]:
    width, height = size
    cx, cy, w, h = map(float, row[:4])
    return centered(cx * width, cy * height, w * width, h * height)


def read_rtdetr(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    found = []
    for row in outputs[0][0]:
        score, number = best_of(list(row[4:]))
        found.append((*scaled(row, size), float(score), number))
    return found


def rtdetr_selected(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    (rows,) = end_to_end(rng, size, classes)
    rows[..., :4] = centers(rng, _QUERIES, 1, 1)
    return [rows]


def read_rtdetr_selected(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    return [(*scaled(row, size), float(row[4]), int(row[5])) for row in outputs[0][0]]


def detr(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    logits = rng.normal(0, 2, (1, _QUERIES, classes + 1)).astype(np.float32)
    return [logits, centers(rng, _QUERIES, 1, 1)[None]]


def read_detr(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    found = []
    for logits, box in zip(outputs[0][0], outputs[1][0], strict=True):
        score, number = best_of(softmax([float(value) for value in logits])[:-1])
        found.append((*scaled(box, size), score, number))
    return found


def detr_sigmoid(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    return [rng.normal(-1, 2, (1, _QUERIES, classes)).astype(np.float32), centers(rng, _QUERIES, 1, 1)[None]]


def read_detr_sigmoid(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    """Every class of every query is a candidate; as many as there are queries are left."""
    found = [
        (*scaled(box, size), sigmoid(float(logit)), number)
        for logits, box in zip(outputs[0][0], outputs[1][0], strict=True)
        for number, logit in enumerate(logits)
    ]
    return sorted(found, key=lambda one: -one[4])[:_QUERIES]


def apart(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    labels = rng.integers(0, classes, (1, _QUERIES))
    scores = np.maximum(probabilities(rng, 1, _QUERIES), np.float32(1 / 16))
    scores[0, 0] = 0.5  # one that is not a whole number
    return [labels, corners(rng, _QUERIES, *size)[None], scores]


def read_apart(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    labels, boxes, scores = (output[0] for output in outputs)
    return [
        (*map(float, box), float(score), int(label)) for label, box, score in zip(labels, boxes, scores, strict=True)
    ]


def ssd(rng: np.random.Generator, size: tuple[int, int], classes: int) -> list[np.ndarray]:
    return [probabilities(rng, 1, 120, classes + 1), corners(rng, 120, 1, 1)[None]]


def read_ssd(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    width, height = size
    found = []
    for scores, (x1, y1, x2, y2) in zip(outputs[0][0], outputs[1][0], strict=True):
        score, number = best_of(list(scores[1:]))
        box = (float(x1) * width, float(y1) * height, float(x2) * width, float(y2) * height)
        found.append((*box, float(score), number + 1))
    return found


QUERIES = {
    "end_to_end": Case(end_to_end, read_end_to_end, suppress=False),
    "rtdetr": Case(rtdetr, read_rtdetr, suppress=False),
    "rtdetr_selected": Case(rtdetr_selected, read_rtdetr_selected, suppress=False),
    "detr": Case(detr, read_detr, suppress=False),
    "detr_sigmoid": Case(detr_sigmoid, read_detr_sigmoid, suppress=False),
    "postprocessed": Case(apart, read_apart, suppress=False),
    "ssd": Case(ssd, read_ssd, background=True),
}
