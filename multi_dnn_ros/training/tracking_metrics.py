"""Scores of tracks: MOTA, IDF1 and HOTA, by the definitions of TrackEval (Luiten and Hoffhues 2020).

CLEAR (Bernardin and Stiefelhagen 2008), Identity (Ristani et al. 2016), HOTA (Luiten et al. 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.tracking.assignment import assign
from multi_dnn_ros.vision.tracking.motion import overlaps

Array = npt.NDArray[np.float64]
#: Minimum overlap of a match for MOTA and IDF1.
_MIN_OVERLAP = 0.5
#: Minimum overlaps over which HOTA is averaged.
ALPHAS = np.arange(0.05, 0.99, 0.05)
_EPSILON = np.finfo(np.float64).eps


@dataclass(frozen=True)
class TrackedFrame:
    """One frame. truth, found: (N, 4) and (M, 4) boxes, x1, y1, x2, y2. truth_ids, found_ids: (N,) and (M,) int64,
    identities, each at most once.
    """

    truth: Array
    truth_ids: npt.NDArray[np.int64]
    found: Array
    found_ids: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrackingScores:
    """mota: at most 1; negative if errors exceed the objects. idf1, hota: 0..1. switches: number of identity switches.

    deta, assa: detection and association accuracy, the parts of HOTA.
    """

    mota: float
    idf1: float
    hota: float
    deta: float
    assa: float
    switches: int


@dataclass(frozen=True)
class _Frame:
    """Indices instead of identities, and the overlaps (N, M)."""

    truth: npt.NDArray[np.int64]
    found: npt.NDArray[np.int64]
    overlap: Array


def score_tracks(frames: Sequence[TrackedFrame]) -> TrackingScores:
    """Scores of one sequence. Raises ValueError if an identity occurs twice in a frame, or there is no true box."""
    indexed, true_count, track_count = _indexed(frames)
    true_boxes = sum(len(frame.truth) for frame in indexed)
    if not true_boxes:
        raise ValueError("tracks cannot be scored: no frame has a true box")
    mota, switches = _clear(indexed, true_count, true_boxes)
    deta, assa = _hota(indexed, true_count, track_count)
    return TrackingScores(
        mota,
        _idf1(indexed, true_count, track_count),
        float(np.sqrt(deta * assa).mean()),
        float(deta.mean()),
        float(assa.mean()),
        switches,
    )


def _indexed(frames: Sequence[TrackedFrame]) -> tuple[list[_Frame], int, int]:
    """The frames, and the number of identities in the truth and in the tracks."""
    numbers: tuple[dict[int, int], dict[int, int]] = {}, {}
    indexed = []
    for position, frame in enumerate(frames):
        rows = []
        for ids, known, name in (
            (frame.truth_ids, numbers[0], "truth"),
            (frame.found_ids, numbers[1], "tracks"),
        ):
            if len(set(ids.tolist())) < len(ids):
                raise ValueError(f"frame {position}: an identity of the {name} occurs twice")
            rows.append(np.array([known.setdefault(each, len(known)) for each in ids.tolist()], np.int64))
        overlap = overlaps(frame.truth.astype(np.float64), frame.found.astype(np.float64))
        indexed.append(_Frame(rows[0], rows[1], overlap))
    return indexed, len(numbers[0]), len(numbers[1])


def _clear(frames: Sequence[_Frame], true_count: int, true_boxes: int) -> tuple[float, int]:
    """MOTA and the number of switches. A match of the previous frame is kept while the overlap suffices.

    Frames without objects or without tracks do not count as the previous one.
    """
    last = np.full(true_count, -1, np.int64)  # the track that each object was matched with most recently
    previous = np.full(true_count, -1, np.int64)  # likewise, in the previous frame with objects and tracks
    matched = switches = false = 0
    for frame in frames:
        if not frame.overlap.size:  # TrackEval then keeps the matches of the frame before
            false += len(frame.found)
            continue
        kept = previous[frame.truth][:, None] == frame.found
        weights = np.where(frame.overlap >= _MIN_OVERLAP - _EPSILON, frame.overlap + 1000.0 * kept, 0.0)
        rows, columns = assign(weights)
        objects, tracks = frame.truth[rows], frame.found[columns]
        switches += int(((last[objects] >= 0) & (last[objects] != tracks)).sum())
        previous[:] = -1
        last[objects] = previous[objects] = tracks
        matched += len(rows)
        false += len(frame.found) - len(rows)
    return (matched - false - switches) / true_boxes, switches


def _idf1(frames: Sequence[_Frame], true_count: int, track_count: int) -> float:
    """F1 of the boxes whose identity is correct, with the one-to-one pairing of identities that maximizes it."""
    counts = np.zeros((true_count, track_count))
    boxes = 0
    for frame in frames:
        rows, columns = np.nonzero(frame.overlap >= _MIN_OVERLAP - _EPSILON)
        counts[frame.truth[rows], frame.found[columns]] += 1
        boxes += len(frame.truth) + len(frame.found)
    correct = counts[assign(counts)].sum()
    return float(2 * correct / boxes)


def _hota(frames: Sequence[_Frame], true_count: int, track_count: int) -> tuple[Array, Array]:
    """Detection and association accuracy for each of ALPHAS."""
    potential, lengths = np.zeros((true_count, track_count)), (np.zeros((true_count, 1)), np.zeros((1, track_count)))
    for frame in frames:
        overlap = frame.overlap
        total = overlap.sum(axis=0)[None, :] + overlap.sum(axis=1)[:, None] - overlap
        share = np.divide(overlap, total, out=np.zeros_like(overlap), where=total > _EPSILON)
        potential[frame.truth[:, None], frame.found] += share
        lengths[0][frame.truth, 0] += 1
        lengths[1][0, frame.found] += 1
    alignment = potential / (lengths[0] + lengths[1] - potential)
    matches = np.zeros((len(ALPHAS), true_count, track_count))
    for frame in frames:
        rows, columns = assign(alignment[frame.truth[:, None], frame.found] * frame.overlap)
        for number, alpha in enumerate(ALPHAS):
            good = frame.overlap[rows, columns] >= alpha - _EPSILON
            matches[number, frame.truth[rows[good]], frame.found[columns[good]]] += 1
    hits = matches.sum(axis=(1, 2))
    boxes = lengths[0].sum() + lengths[1].sum()
    accuracy = matches / np.maximum(1, lengths[0] + lengths[1] - matches)
    return hits / np.maximum(1, boxes - hits), (matches * accuracy).sum(axis=(1, 2)) / np.maximum(1, hits)
