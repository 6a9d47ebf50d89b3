"""MOTA, IDF1 and HOTA: sequences with known scores, and the tracker on generated drives with known truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.training.tracking_metrics import TrackedFrame, score_tracks
from multi_dnn_ros.vision.results import Detections
from multi_dnn_ros.vision.tracking.byte_track import ByteTracker, TrackerSettings

#: Boxes that do not overlap.
BOXES = {name: np.array([100.0 * n, 0, 100.0 * n + 50, 50]) for n, name in enumerate("abcd")}


def frame(truth: dict[int, str], tracks: dict[int, str]) -> TrackedFrame:
    """truth, tracks: names in BOXES by identity."""

    def boxes(names: dict[int, str]) -> np.ndarray:
        return np.array([BOXES[name] for name in names.values()]).reshape(-1, 4)

    return TrackedFrame(boxes(truth), np.array(list(truth), np.int64), boxes(tracks), np.array(list(tracks), np.int64))


def test_perfect_tracks() -> None:
    scores = score_tracks([frame({1: "a", 2: "b"}, {8: "b", 7: "a"})] * 5)
    assert (scores.mota, scores.idf1, scores.hota, scores.switches) == (1.0, 1.0, pytest.approx(1.0), 0)


def test_one_object_whose_track_changes_half_way() -> None:
    """HOTA of TrackEval: all 10 boxes are found, each association has 5 of 10 boxes in common."""
    scores = score_tracks([frame({1: "a"}, {7: "a"})] * 5 + [frame({1: "a"}, {8: "a"})] * 5)
    assert scores.switches == 1
    assert scores.mota == pytest.approx(0.9)
    assert scores.idf1 == pytest.approx(0.5)
    assert (scores.deta, scores.assa) == (pytest.approx(1.0), pytest.approx(0.5))
    assert scores.hota == pytest.approx(0.5**0.5)


def test_misses_and_false_boxes() -> None:
    """10 true boxes: 8 found, 2 missed, 3 false ones."""
    frames = [frame({1: "a"}, {7: "a"})] * 5 + [frame({1: "a"}, {})] * 2 + [frame({1: "a"}, {7: "a", 9: "c"})] * 3
    scores = score_tracks(frames)
    assert scores.mota == pytest.approx(1 - (2 + 3) / 10)
    assert scores.idf1 == pytest.approx(2 * 8 / (10 + 11))
    assert scores.deta == pytest.approx(8 / (10 + 11 - 8))
    assert scores.assa == pytest.approx(8 / 10)


def test_two_objects_whose_tracks_are_exchanged() -> None:
    frames = [frame({1: "a", 2: "b"}, {7: "a", 8: "b"})] * 4 + [frame({1: "a", 2: "b"}, {7: "b", 8: "a"})] * 6
    scores = score_tracks(frames)
    assert scores.switches == 2
    assert scores.mota == pytest.approx(1 - 2 / 20)
    assert scores.idf1 == pytest.approx(12 / 20)
    assert scores.assa == pytest.approx((8 * 4 / 16 + 12 * 6 / 14) / 20)


def test_a_match_of_the_previous_frame_is_kept() -> None:
    """A second box overlaps the object better, but the overlap of the first still suffices: no switch."""
    truth, near, better = np.array([[0.0, 0, 100, 100]]), [0.0, 0, 80, 100], [0.0, 0, 99, 100]
    ids = np.array([1])
    frames = [
        TrackedFrame(truth, ids, np.array([near]), np.array([7])),
        TrackedFrame(truth, ids, np.array([near, better]), np.array([7, 8])),
    ]
    scores = score_tracks(frames)
    assert (scores.switches, scores.mota) == (0, pytest.approx(0.5))


@pytest.mark.parametrize("missing", ["tracks", "truth"])
def test_a_match_is_kept_over_a_frame_without_boxes(missing: str) -> None:
    """As in TrackEval, which skips such frames; their false and missed boxes count."""
    truth, near, better = np.array([[0.0, 0, 100, 100]]), [0.0, 0, 80, 100], [0.0, 0, 99, 100]
    ids, nothing, none = np.array([1]), np.zeros((0, 4)), np.zeros(0, np.int64)
    between = {
        "tracks": TrackedFrame(truth, ids, nothing, none),
        "truth": TrackedFrame(nothing, none, np.array([near, better]), np.array([7, 8])),
    }
    frames = [
        TrackedFrame(truth, ids, np.array([near]), np.array([7])),
        between[missing],
        TrackedFrame(truth, ids, np.array([near, better]), np.array([7, 8])),
    ]
    scores = score_tracks(frames)
    assert scores.switches == 0
    # Two objects are found, of two or three, and one or three tracks are false.
    assert scores.mota == pytest.approx({"tracks": (2 - 1) / 3, "truth": (2 - 3) / 2}[missing])


def test_an_identity_twice_in_a_frame_is_an_error() -> None:
    boxes = np.zeros((2, 4))
    with pytest.raises(ValueError, match="frame 0: an identity of the tracks occurs twice"):
        score_tracks([TrackedFrame(boxes, np.array([1, 2]), boxes, np.array([3, 3]))])
    with pytest.raises(ValueError, match="no frame has a true box"):
        score_tracks([])


def drive(seed: int, frames: int, hz: float) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Boxes, identities and classes of the objects of a generated drive."""
    made = SceneGenerator(320, 180, seed).drive(frames, hz, stretch_s=0.0)
    scenes = [made.frame(index) for index in range(frames)]
    return [(scene.boxes, scene.identities, scene.class_ids) for scene in scenes]


def detections(boxes: np.ndarray, classes: np.ndarray, rng: np.random.Generator) -> Detections:
    """Simulated detections of true boxes: noisy, some with low scores, some missing, some false."""
    seen = rng.random(len(boxes)) > 0.1
    boxes = boxes[seen] + rng.normal(0.0, 1.0, (int(seen.sum()), 4)).astype(np.float32)
    scores = rng.choice([0.9, 0.7, 0.25], len(boxes), p=[0.5, 0.3, 0.2])
    false = rng.uniform((0, 0), (280, 140), (int(rng.random() < 0.2), 2))
    boxes = np.concatenate([boxes, np.concatenate([false, false + 30], axis=1)]).astype(np.float32)
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2])
    classes = np.concatenate([classes[seen], np.zeros(len(false), np.int64)])
    return Detections(boxes, np.concatenate([scores, np.full(len(false), 0.6)]).astype(np.float32), classes, LABELS)


def run(truth: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], hz: float, *, stamped: bool = True, every: int = 1):
    tracker, rng, frames = ByteTracker(TrackerSettings(high_score=0.5)), np.random.default_rng(0), []
    for index, (boxes, identities, classes) in enumerate(truth):
        found = detections(boxes, classes, rng)
        if index % every:  # the node dropped this frame
            continue
        stamp_ns = round(index * 1e9 / hz) if stamped else round(index // every * 1e9 / hz)
        tracked = tracker.update(found, stamp_ns)
        assert tracked.ids is not None
        named = tracked.ids > 0
        frames.append(TrackedFrame(boxes, identities, tracked.boxes[named], tracked.ids[named]))
    return score_tracks(frames)


def test_identities_of_a_drive_stand_for_objects() -> None:
    truth = drive(3, 12, 30.0)
    assert all(len(set(identities.tolist())) == len(identities) for _, identities, _ in truth)
    before: dict[int, tuple[np.ndarray, int]] = {}
    for boxes, identities, classes in truth:
        for box, identity, kind in zip(boxes, identities.tolist(), classes.tolist(), strict=True):
            if identity in before:
                moved = np.abs(np.mean(box.reshape(2, 2) - before[identity][0].reshape(2, 2), axis=0))
                assert (moved < 30).all()
                assert kind == before[identity][1]
        before = {
            each: (box, kind) for box, each, kind in zip(boxes, identities.tolist(), classes.tolist(), strict=True)
        }
    assert len(before) > 1


def test_tracks_on_a_generated_drive() -> None:
    """A detector that misses 10 % of the boxes and gives 20 % a low score."""
    scores = run(drive(3, 60, 30.0), 30.0)
    print(scores)
    assert scores.idf1 > 0.8
    assert scores.hota > 0.65
    assert scores.mota > 0.7
