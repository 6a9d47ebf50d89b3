"""ByteTrack (Zhang et al., ECCV 2022): tracks the boxes of one camera, by stamps instead of frame counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.results import Detections
from multi_dnn_ros.vision.tracking.assignment import assign
from multi_dnn_ros.vision.tracking.motion import Array, Motion, overlaps

Indices = npt.NDArray[np.int64]

#: Only this many boxes, those with the best scores, are tracked. Bounds the time and memory of a frame.
MAX_BOXES = 1000
#: Minimum similarity of a pair. For boxes of high score: overlap times score, with confirmed and with new tracks; for
#: boxes of low score: overlap. The values of the ByteTrack authors, who limit the distance (1 - similarity) to 0.8
#: (match_thresh), 0.7 and 0.5.
_MIN_SIMILARITY, _MIN_SIMILARITY_NEW, _MIN_OVERLAP_LOW = 0.2, 0.3, 0.5
#: Boxes between this score and the threshold are kept only if they continue a track.
LOW_SCORE = 0.1
#: A lost and a present track that overlap more than this are the same object.
_DUPLICATE_OVERLAP = 0.85


@dataclass(frozen=True)
class TrackerSettings:
    """high_score: boxes of at least this score start tracks and are always kept. max_lost_s: how long a track without a
    box is kept.
    """

    high_score: float
    max_lost_s: float = 1.0


@dataclass
class _Tracks:
    """N tracks. ids: 0 until a second box has confirmed the track. seen_ns: stamp of the last box.
    lost: whether the track had no box in the last frame.
    """

    motion: Motion
    ids: Indices
    class_ids: Indices
    seen_ns: Indices
    lost: npt.NDArray[np.bool_]

    @classmethod
    def none(cls) -> _Tracks:
        empty = np.zeros(0, np.int64)
        return cls(Motion.of(np.zeros((0, 4))), empty, empty, empty, np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Indices) -> _Tracks:
        return _Tracks(
            self.motion.select(index),
            self.ids[index],
            self.class_ids[index],
            self.seen_ns[index],
            self.lost[index],
        )


class ByteTracker:
    """Tracks the boxes of one DNN on one camera. Not thread-safe.

    Boxes are associated in three steps: those of high score with the confirmed tracks; those of low score, which are
    often occluded or blurred objects, with the confirmed tracks that are left and had a box in the last frame; the
    remaining ones of high score with the new tracks. An identity is a positive number that is used once. A new track
    gets its identity with its second box, except in the first frame.
    """

    def __init__(self, settings: TrackerSettings) -> None:
        self._settings = settings
        self._tracks = _Tracks.none()
        self._last_id = 0
        self._last_ns: int | None = None  # stamp of the last frame

    def set_high_score(self, score: float) -> None:
        """Change the setting `high_score`, from the next frame."""
        self._settings = replace(self._settings, high_score=score)

    def end_tracks(self) -> None:
        """End all tracks; the next boxes have new identities."""
        self._tracks = _Tracks.none()

    def update(self, found: Detections, stamp_ns: int) -> Detections:
        """The boxes to publish, in their order, with `ids`, (N,) int64, 0: no identity.

        stamp_ns: stamp of the image. The tracks are extrapolated to it; those without a box for more than `max_lost_s`
        end. A stamp older than that of the last frame means that time was set back: if by at most `max_lost_s`, the
        tracks continue as if no time had passed; if by more (a recording started again), all tracks end.

        Raises ValueError for boxes or scores that are not finite, and for boxes with x2 < x1 or y2 < y1; the tracks
        then stay unchanged.
        """
        boxes, scores, class_ids = _checked(found)
        is_first = self._advance(stamp_ns)
        tracks, settings = self._tracks, self._settings
        best = np.argsort(-scores, kind="stable")[:MAX_BOXES]
        high = best[scores[best] >= settings.high_score]
        low = best[(scores[best] < settings.high_score) & (scores[best] >= LOW_SCORE)]
        predicted = tracks.motion.boxes()
        confirmed, new = np.flatnonzero(tracks.ids > 0), np.flatnonzero(tracks.ids == 0)
        box_tracks = np.full(len(boxes), -1, np.int64)  # for each box the index of its track; -1: none

        def associate(
            tracks_left: Indices, boxes_left: Indices, minimum: float, *, scored: bool
        ) -> tuple[Indices, Indices]:
            """Pair tracks with boxes; returns the tracks and the boxes that remain without a pair."""
            if not len(tracks_left) or not len(boxes_left):
                return tracks_left, boxes_left
            weights = overlaps(predicted[tracks_left], boxes[boxes_left])
            if scored:
                weights *= scores[boxes_left]
            weights -= minimum
            weights[tracks.class_ids[tracks_left][:, None] != class_ids[boxes_left]] = 0.0
            rows, columns = assign(weights)
            box_tracks[boxes_left[columns]] = tracks_left[rows]
            return np.delete(tracks_left, rows), np.delete(boxes_left, columns)

        unpaired, high = associate(confirmed, high, _MIN_SIMILARITY, scored=True)
        associate(unpaired[~tracks.lost[unpaired]], low, _MIN_OVERLAP_LOW, scored=False)
        _, high = associate(new, high, _MIN_SIMILARITY_NEW, scored=True)
        self._update(box_tracks, boxes, class_ids, stamp_ns)
        ids = np.where(box_tracks >= 0, tracks.ids[box_tracks], 0) if len(tracks) else np.zeros(len(boxes), np.int64)
        ids[high] = self._start(boxes[high], class_ids[high], stamp_ns, confirmed=is_first)
        self._end_lost()
        kept = np.flatnonzero((scores >= settings.high_score) | (ids > 0))
        return replace(
            found,
            boxes=found.boxes[kept],
            scores=found.scores[kept],
            class_ids=found.class_ids[kept],
            ids=ids[kept],
        )

    def _advance(self, stamp_ns: int) -> bool:
        """Extrapolate the tracks to this time; returns whether this is the first frame, or counts as the first."""
        last_ns, limit_ns = self._last_ns, round(self._settings.max_lost_s * 1e9)
        self._last_ns = stamp_ns
        if last_ns is None or stamp_ns < last_ns - limit_ns:
            self._tracks = _Tracks.none()
            return True
        tracks = self._tracks
        if stamp_ns < last_ns:
            tracks.seen_ns -= last_ns - stamp_ns  # the tracks keep their ages
        alive = np.flatnonzero(stamp_ns - tracks.seen_ns <= limit_ns)
        if len(alive) < len(tracks):
            self._tracks = tracks = tracks.select(alive)
        tracks.motion.predict(max(0, stamp_ns - last_ns) / 1e9)
        return False

    def _update(self, box_tracks: Indices, boxes: Array, class_ids: Indices, now_ns: int) -> None:
        """Correct the tracks by their boxes. Tracks that are confirmed by their second box get their identity."""
        tracks = self._tracks
        paired = np.flatnonzero(box_tracks >= 0)
        index = box_tracks[paired]
        tracks.motion.update(index, boxes[paired])
        tracks.class_ids[index] = class_ids[paired]
        tracks.seen_ns[index] = now_ns
        tracks.lost[:] = True
        tracks.lost[index] = False
        fresh = index[tracks.ids[index] == 0]
        tracks.ids[fresh] = self._new_ids(len(fresh))
        tracks.motion.keep_size(np.flatnonzero(tracks.lost))

    def _start(self, boxes: Array, class_ids: Indices, now_ns: int, *, confirmed: bool) -> Indices:
        """Start a track for each of the boxes; returns their identities, (N,)."""
        ids = self._new_ids(len(boxes)) if confirmed else np.zeros(len(boxes), np.int64)
        tracks, times = self._tracks, np.full(len(boxes), now_ns, np.int64)
        self._tracks = _Tracks(
            tracks.motion.joined(Motion.of(boxes)),
            np.concatenate([tracks.ids, ids]),
            np.concatenate([tracks.class_ids, class_ids]),
            np.concatenate([tracks.seen_ns, times]),
            np.concatenate([tracks.lost, np.zeros(len(boxes), np.bool_)]),
        )
        return ids

    def _end_lost(self) -> None:
        """End new tracks without a second box, duplicates, and the longest lost ones if there are too many."""
        tracks = self._tracks
        ended = tracks.lost & (tracks.ids == 0)
        lost, present = np.flatnonzero(tracks.lost & ~ended), np.flatnonzero(~tracks.lost)
        if len(lost) and len(present):
            boxes = tracks.motion.boxes()
            same = overlaps(boxes[lost], boxes[present]) > _DUPLICATE_OVERLAP
            same &= tracks.class_ids[lost][:, None] == tracks.class_ids[present]
            ended[lost[same.any(axis=1)]] = True
        waiting = np.flatnonzero(tracks.lost & ~ended)
        if len(waiting) > MAX_BOXES:
            ended[waiting[np.argsort(tracks.seen_ns[waiting], kind="stable")[: len(waiting) - MAX_BOXES]]] = True
        if ended.any():
            self._tracks = tracks.select(np.flatnonzero(~ended))

    def _new_ids(self, count: int) -> Indices:
        first, self._last_id = self._last_id + 1, self._last_id + count
        return np.arange(first, self._last_id + 1, dtype=np.int64)


def _checked(found: Detections) -> tuple[Array, Array, Indices]:
    boxes, scores = found.boxes.astype(np.float64), found.scores.astype(np.float64)
    count = len(boxes)
    if boxes.shape != (count, 4) or scores.shape != (count,) or found.class_ids.shape != (count,):
        raise ValueError(
            f"detections have boxes {boxes.shape}, scores {scores.shape}, class_ids {found.class_ids.shape}; expected "
            "(N, 4), (N,), (N,)"
        )
    bad = ~(np.isfinite(boxes).all(axis=1) & np.isfinite(scores))
    if bad.any():
        raise ValueError(f"{int(bad.sum())} of {count} boxes or their scores are NaN or infinite")
    if (boxes[:, 2:] < boxes[:, :2]).any():
        raise ValueError("a box has x2 < x1 or y2 < y1")
    return boxes, scores, found.class_ids
