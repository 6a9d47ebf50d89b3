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

#: Tracks are an array (N,) of these records. mean: centre x, centre y, width, height in pixels; velocity: their change
#: per 1/30 s; p, pv, v: variance of the mean, its covariance with the velocity, and variance of the velocity. The four
#: coordinates are independent of one another, so their 2x2 covariances are stored instead of an 8x8 matrix. id: 0 until
#: a second box has confirmed the track. seen_ns: stamp of the last box. lost: whether the last frame had no box of it.
_TRACK = np.dtype(
    [(name, np.float64, 4) for name in ("mean", "velocity", "p", "pv", "v")]
    + [(name, np.int64) for name in ("id", "class_id", "seen_ns")]
    + [("lost", np.bool_)]
)


def _new_tracks(boxes: Array, class_ids: Indices, now_ns: int) -> npt.NDArray[np.void]:
    """A track at rest for each of the boxes (N, 4)."""
    tracks = np.zeros(len(boxes), _TRACK)
    tracks["mean"], tracks["class_id"], tracks["seen_ns"] = _centred(boxes), class_ids, now_ns
    sizes = _sizes(tracks["mean"])
    tracks["p"], tracks["v"] = (2 * _POSITION * sizes) ** 2, (10 * _VELOCITY * sizes) ** 2
    return tracks


def _predict(tracks: npt.NDArray[np.void], seconds: float) -> None:
    """Advance by 0 or more seconds. The uncertainty grows with this time, however many frames were lost."""
    frames, sizes = seconds * REFERENCE_HZ, _sizes(tracks["mean"])
    tracks["mean"] += tracks["velocity"] * frames
    tracks["p"] += 2 * frames * tracks["pv"] + frames**2 * tracks["v"] + frames * (_POSITION * sizes) ** 2
    tracks["pv"] += frames * tracks["v"]
    tracks["v"] += frames * (_VELOCITY * sizes) ** 2


def _correct(tracks: npt.NDArray[np.void], boxes: Array) -> None:
    """Correct each track by its measured box (N, 4), the update of a Kalman filter."""
    total = tracks["p"] + (_POSITION * _sizes(tracks["mean"])) ** 2
    gain, velocity_gain = tracks["p"] / total, tracks["pv"] / total
    innovation = _centred(boxes) - tracks["mean"]
    tracks["mean"] += gain * innovation
    tracks["velocity"] += velocity_gain * innovation
    tracks["v"] -= velocity_gain * tracks["pv"]
    tracks["p"] *= 1 - gain
    tracks["pv"] *= 1 - gain


def _boxes(tracks: npt.NDArray[np.void]) -> Array:
    """(N, 4), x1, y1, x2, y2; never with a negative width or height."""
    center, half = tracks["mean"][:, :2], np.maximum(tracks["mean"][:, 2:], 0.0) / 2
    return np.concatenate([center - half, center + half], axis=1)


def _centred(boxes: Array) -> Array:
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _sizes(mean: Array) -> Array:
    """(N, 4): width, height, width, height. The deviation of x depends on the width, that of y on the height (BoT-SORT,
    Aharon et al. 2022).
    """
    return np.tile(np.maximum(mean[:, 2:], _MIN_SIZE), 2)


def overlaps(first: Array, second: Array) -> Array:
    """(N, M) intersection over union of boxes (N, 4) and (M, 4), x1, y1, x2, y2; 0 if both are empty."""
    one, other = first[:, None], second[None]
    sides = (np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])).clip(min=0.0)
    shared = sides[..., 0] * sides[..., 1]
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (one, other)]
    return np.asarray(shared / np.maximum(areas[0] + areas[1] - shared, 1e-9))


@dataclass(frozen=True)
class TrackerSettings:
    """high_score: boxes of at least this score start tracks and are always kept. max_lost_s: how long a track without a
    box is kept.
    """

    high_score: float
    max_lost_s: float = 1.0


class ByteTracker:
    """Tracks the boxes of one DNN on one camera. Not thread-safe.

    Boxes are associated in three steps: those of high score with the confirmed tracks; those of low score, which are
    often occluded or blurred objects, with the confirmed tracks that are left and had a box in the last frame; the
    remaining ones of high score with the new tracks. An identity is a positive number that is used once. A new track
    gets its identity with its second box, except in the first frame.
    """

    def __init__(self, settings: TrackerSettings) -> None:
        self._settings = settings
        self._tracks = np.zeros(0, _TRACK)
        self._last_id = 0
        self._last_ns: int | None = None  # stamp of the last frame

    def set_high_score(self, score: float) -> None:
        """Change the setting `high_score`, from the next frame."""
        self._settings = replace(self._settings, high_score=score)

    def end_tracks(self) -> None:
        """End all tracks; the next boxes have new identities."""
        self._tracks = np.zeros(0, _TRACK)

    def update(self, found: Detections, stamp_ns: int) -> Detections:
        """The boxes to publish, in their order, with `ids`, (N,) int64, 0: no identity.

        stamp_ns: stamp of the image. The tracks are extrapolated to it; those without a box for more than `max_lost_s`
        end. A stamp older than that of the last frame means that time was set back: if by at most `max_lost_s`, the
        tracks continue as if no time had passed; if by more (a recording started again), all tracks end.

        Raises ValueError for boxes or scores that are not finite, and for boxes with x2 < x1 or y2 < y1; the tracks
        then stay unchanged.
        """
        boxes, scores = found.boxes.astype(np.float64), found.scores.astype(np.float64)
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all() and (boxes[:, 2:] >= boxes[:, :2]).all()):
            raise ValueError("a box or score is NaN or infinite, or a box has x2 < x1 or y2 < y1")
        is_first = self._advance(stamp_ns)
        tracks, high_score, class_ids = self._tracks, self._settings.high_score, found.class_ids
        best = np.argsort(-scores, kind="stable")[:MAX_BOXES]
        high = best[scores[best] >= high_score]
        low = best[(scores[best] < high_score) & (scores[best] >= LOW_SCORE)]
        predicted = _boxes(tracks)
        confirmed, new = np.flatnonzero(tracks["id"] > 0), np.flatnonzero(tracks["id"] == 0)
        box_tracks = np.full(len(boxes), -1, np.int64)  # for each box the index of its track; -1: none

        def associate(
            tracks_left: Indices, boxes_left: Indices, minimum: float, *, scored: bool
        ) -> tuple[Indices, Indices]:
            """Pair tracks with boxes; returns the tracks and the boxes that remain without a pair."""
            weights = overlaps(predicted[tracks_left], boxes[boxes_left])
            if scored:
                weights *= scores[boxes_left]
            weights -= minimum
            weights[tracks["class_id"][tracks_left][:, None] != class_ids[boxes_left]] = 0.0
            if not weights.size:
                return tracks_left, boxes_left
            # The pairs with the largest total weight, by the algorithm of Jonker and Volgenant.
            _, columns, _ = lap.lapjv(-weights, extend_cost=True, cost_limit=0.0)
            rows = np.flatnonzero(columns >= 0)
            rows = rows[weights[rows, columns[rows]] > 0]
            columns = columns[rows].astype(np.int64)
            box_tracks[boxes_left[columns]] = tracks_left[rows]
            return np.delete(tracks_left, rows), np.delete(boxes_left, columns)

        unpaired, high = associate(confirmed, high, _MIN_SIMILARITY, scored=True)
        associate(unpaired[~tracks["lost"][unpaired]], low, _MIN_OVERLAP_LOW, scored=False)
        _, high = associate(new, high, _MIN_SIMILARITY_NEW, scored=True)
        self._update(box_tracks, boxes, class_ids, stamp_ns)
        started = _new_tracks(boxes[high], class_ids[high], stamp_ns)
        if is_first:
            started["id"] = self._new_ids(len(started))
        ids = np.zeros(len(boxes), np.int64)
        ids[box_tracks >= 0] = self._tracks["id"][box_tracks[box_tracks >= 0]]
        ids[high] = started["id"]
        self._tracks = np.concatenate([self._tracks, started])
        self._end_lost()
        kept = np.flatnonzero((scores >= high_score) | (ids > 0))
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
            self.end_tracks()
            return True
        if stamp_ns < last_ns:
            self._tracks["seen_ns"] -= last_ns - stamp_ns  # the tracks keep their ages
        self._tracks = self._tracks[stamp_ns - self._tracks["seen_ns"] <= limit_ns]
        _predict(self._tracks, max(0, stamp_ns - last_ns) / 1e9)
        return False

    def _update(self, box_tracks: Indices, boxes: Array, class_ids: Indices, now_ns: int) -> None:
        """Correct the tracks by their boxes. Tracks that are confirmed by their second box get their identity."""
        tracks, paired = self._tracks, np.flatnonzero(box_tracks >= 0)
        index = box_tracks[paired]
        seen = tracks[index]
        _correct(seen, boxes[paired])
        seen["class_id"], seen["seen_ns"] = class_ids[paired], now_ns
        fresh = np.flatnonzero(seen["id"] == 0)
        seen["id"][fresh] = self._new_ids(len(fresh))
        tracks[index] = seen
        tracks["lost"] = True
        tracks["lost"][index] = False
        tracks["velocity"][tracks["lost"], 2:] = 0.0  # by extrapolation, a lost box would grow or vanish

    def _end_lost(self) -> None:
        """End new tracks without a second box, and lost ones that a present one covers."""
        tracks = self._tracks
        ended = tracks["lost"] & (tracks["id"] == 0)
        lost, present = tracks["lost"], ~tracks["lost"]
        boxes = _boxes(tracks)
        same = overlaps(boxes[lost], boxes[present]) > _DUPLICATE_OVERLAP
        same &= tracks["class_id"][lost][:, None] == tracks["class_id"][present]
        ended[np.flatnonzero(lost)[same.any(axis=1)]] = True
        self._tracks = tracks[~ended]

    def _new_ids(self, count: int) -> Indices:
        first, self._last_id = self._last_id + 1, self._last_id + count
        return np.arange(first, self._last_id + 1, dtype=np.int64)
