"""ByteTrack (Zhang et al., ECCV 2022): tracks the boxes of one camera, by stamps instead of frame counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import lap
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.results import Detections

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

#: Standard deviations as shares of the box's size, for one frame at REFERENCE_HZ: of position and size, and of their
#: change per frame. Values of DeepSORT (Wojke et al. 2017), which ByteTrack uses.
_POSITION, _VELOCITY = 1 / 20, 1 / 160
#: Frame rate for which these values were chosen (MOT17 has 25 and 30 Hz).
REFERENCE_HZ = 30.0
#: Minimum size in pixels from which the deviations are computed.
_MIN_SIZE = 1.0

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


@dataclass
class Motion:
    """N boxes and their motion.

    mean: (N, 4), centre x, centre y, width, height in pixels. velocity: (N, 4), their change per 1/30 s.
    p, pv, v: (N, 4), variance of the mean, its covariance with the velocity, and variance of the velocity. The four
    coordinates are independent of one another, so their 2x2 covariances are stored instead of an 8x8 matrix.
    """

    mean: Array
    velocity: Array
    p: Array
    pv: Array
    v: Array

    @classmethod
    def of(cls, boxes: Array) -> Motion:
        """New boxes at rest. boxes: (N, 4), x1, y1, x2, y2."""
        mean = _centred(boxes)
        size = _sizes(mean)
        return cls(
            mean, np.zeros_like(mean), (2 * _POSITION * size) ** 2, np.zeros_like(mean), (10 * _VELOCITY * size) ** 2
        )

    def __len__(self) -> int:
        return len(self.mean)

    def boxes(self) -> Array:
        """(N, 4), x1, y1, x2, y2; never with a negative width or height."""
        half = np.maximum(self.mean[:, 2:], 0.0) / 2
        return np.concatenate([self.mean[:, :2] - half, self.mean[:, :2] + half], axis=1)

    def predict(self, seconds: float) -> None:
        """Advance by 0 or more seconds. The uncertainty grows with this time, however many frames were lost."""
        frames = seconds * REFERENCE_HZ
        size = _sizes(self.mean)
        self.mean += self.velocity * frames
        self.p += 2 * frames * self.pv + frames**2 * self.v + frames * (_POSITION * size) ** 2
        self.pv += frames * self.v
        self.v += frames * (_VELOCITY * size) ** 2

    def update(self, index: npt.NDArray[np.int64], boxes: Array) -> None:
        """Correct the boxes of these indices by measured boxes, (K, 4), x1, y1, x2, y2."""
        mean, p, pv = self.mean[index], self.p[index], self.pv[index]
        total = p + (_POSITION * _sizes(mean)) ** 2
        gain, velocity_gain = p / total, pv / total
        innovation = _centred(boxes) - mean
        self.mean[index] = mean + gain * innovation
        self.velocity[index] += velocity_gain * innovation
        self.v[index] -= velocity_gain * pv
        self.p[index] = (1 - gain) * p
        self.pv[index] = (1 - gain) * pv

    def keep_size(self, index: npt.NDArray[np.int64]) -> None:
        """Set the change of width and height to 0: by extrapolation, a lost box would grow or vanish."""
        self.velocity[index, 2:] = 0.0

    def select(self, index: npt.NDArray[np.int64]) -> Motion:
        """The boxes of these indices."""
        return Motion(self.mean[index], self.velocity[index], self.p[index], self.pv[index], self.v[index])

    def joined(self, other: Motion) -> Motion:
        """These boxes, then the others."""
        return Motion(
            np.concatenate([self.mean, other.mean]),
            np.concatenate([self.velocity, other.velocity]),
            np.concatenate([self.p, other.p]),
            np.concatenate([self.pv, other.pv]),
            np.concatenate([self.v, other.v]),
        )


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union, (N, M), of boxes (N, 4) and (M, 4), x1, y1, x2, y2; 0 if both are empty."""
    x1, y1, x2, y2 = first.T[:, :, None]
    u1, v1, u2, v2 = second.T[:, None, :]
    width = np.minimum(x2, u2) - np.maximum(x1, u1)
    height = np.minimum(y2, v2) - np.maximum(y1, v1)
    shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    total = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - shared
    return np.asarray(shared / np.maximum(total, 1e-9))


def _centred(boxes: Array) -> Array:
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _sizes(mean: Array) -> Array:
    """(N, 4): width, height, width, height. The deviation of x depends on the width, that of y on the height (BoT-SORT,
    Aharon et al. 2022).
    """
    return np.tile(np.maximum(mean[:, 2:], _MIN_SIZE), 2)


def assign(weights: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The pairs with the largest total weight; each row and each column is in at most one pair.

    weights: (N, M), finite; pairs with a weight of 0 or less are not allowed. Returns the rows, ascending, and the
    columns, each (K,) int64. Computed by the algorithm of Jonker and Volgenant (library lap).
    """
    if not weights.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, columns, _ = lap.lapjv(-weights.astype(np.float64), extend_cost=True, cost_limit=0.0)
    rows = np.flatnonzero(columns >= 0)
    rows = rows[weights[rows, columns[rows]] > 0]
    return rows, columns[rows].astype(np.int64)


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
