"""Identities of boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.vision.byte_track import ByteTracker, TrackerSettings
from multi_dnn_ros.vision.results import Detections

MS = 1_000_000
S = 1000 * MS


def found(*rows: tuple[float, ...]) -> Detections:
    """Boxes of (x1, y1, x2, y2, score, class)."""
    values = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(
        values[:, :4].astype(np.float32),
        values[:, 4].astype(np.float32),
        values[:, 5].astype(np.int64),
        ("car", "truck"),
    )


def ids(tracked: Detections) -> list[int]:
    assert tracked.ids is not None
    return tracked.ids.tolist()


def tracker(**changes: object) -> ByteTracker:
    return ByteTracker(TrackerSettings(**{"high_score": 0.5, **changes}))  # type: ignore[arg-type]


def car(x: float, score: float = 0.9, class_id: int = 0) -> tuple[float, ...]:
    return x, 100, x + 50, 140, score, class_id


def test_an_object_keeps_its_identity_while_it_moves() -> None:
    one = tracker()
    seen = [ids(one.update(found(car(10 * n), car(600 - 10 * n)), n * 33 * MS)) for n in range(20)]
    assert seen == [[1, 2]] * 20


def test_a_new_object_gets_its_identity_with_its_second_box() -> None:
    one = tracker()
    one.update(found(car(0)), 0)
    assert ids(one.update(found(car(0), car(300)), 33 * MS)) == [1, 0]
    assert ids(one.update(found(car(0), car(300)), 66 * MS)) == [1, 2]
    assert ids(one.update(found(car(0), car(300), car(500)), 99 * MS)) == [1, 2, 0]
    assert ids(one.update(found(car(0), car(300)), 132 * MS)) == [1, 2]  # the third was one false box


@pytest.mark.parametrize("gap_ms", [100, 500, 900])
def test_lost_frames_are_bridged_by_the_stamps(gap_ms: int) -> None:
    """The object moves 300 pixels/s: after the gap its box does not overlap its last box."""
    one = tracker()
    for n in range(30):
        one.update(found(car(10 * n)), n * 33_333_333)
    assert ids(one.update(found(car(290 + 0.3 * gap_ms)), 29 * 33_333_333 + gap_ms * MS)) == [1]


def test_an_object_without_a_box_for_a_while_keeps_its_identity_and_then_loses_it() -> None:
    one = tracker(max_lost_s=0.5)
    one.update(found(car(0)), 0)
    for n in range(1, 5):
        assert ids(one.update(found(), n * 100 * MS)) == []
    assert ids(one.update(found(car(0)), 500 * MS)) == [1]
    assert ids(one.update(found(), 900 * MS)) == []
    assert ids(one.update(found(car(0)), 1001 * MS)) == [0]
    assert ids(one.update(found(car(0)), 1034 * MS)) == [2]


def test_a_slightly_older_stamp_is_tolerated_and_a_much_older_one_ends_all_tracks() -> None:
    one = tracker()
    one.update(found(car(0)), 100 * S)
    assert ids(one.update(found(car(0)), 100 * S - 500 * MS)) == [1]
    assert ids(one.update(found(car(0)), 50 * S)) == [2]  # the recording started again
    assert ids(one.update(found(car(0)), 50 * S + 33 * MS)) == [2]
    assert ids(one.update(found(car(0)), 90 * S)) == [0]  # far ahead: the track has ended


@pytest.mark.parametrize("row", [(float("nan"), 0, 1, 1, 0.9, 0), (0, 0, float("inf"), 1, 0.9, 0),
                                 (0, 0, 1, 1, float("nan"), 0), (5, 0, 1, 1, 0.9, 0)])  # fmt: skip
def test_invalid_boxes_are_refused_and_change_nothing(row: tuple[float, ...]) -> None:
    one = tracker()
    one.update(found(car(0)), 0)
    with pytest.raises(ValueError, match=r"NaN or infinite|x2 < x1"):
        one.update(found(car(0), row), 33 * MS)
    assert ids(one.update(found(car(0)), 66 * MS)) == [1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-2 * S, 3 * S),
            st.lists(
                st.tuples(
                    st.floats(0, 100, width=32), st.floats(0, 100, width=32), st.floats(0, 60, width=32),
                    st.floats(0, 60, width=32), st.floats(0, 1, width=32), st.integers(0, 1),
                ),
                max_size=8,
            ),
        ),
        max_size=25,
    ),
)  # fmt: skip
def test_no_identity_occurs_twice_in_a_frame_or_is_used_again(
    frames: list[tuple[int, list[tuple[float, ...]]]],
) -> None:
    one, now_ns = tracker(), 10**15
    last_seen: dict[int, int] = {}
    for number, (step_ns, rows) in enumerate(frames):
        now_ns += step_ns
        boxes = found(*((x, y, x + w, y + h, score, kind) for x, y, w, h, score, kind in rows))
        tracked = one.update(boxes, now_ns)
        named = [each for each in ids(tracked) if each]
        assert len(named) == len(set(named))
        assert (tracked.scores[np.array(ids(tracked), np.int64) == 0] >= 0.5).all()
        assert [row[4] for row in rows if row[4] >= 0.5] == [s for s in tracked.scores.tolist() if s >= 0.5]
        newest = max(last_seen, default=0)
        for each in named:
            assert each in last_seen or each > newest
            last_seen[each] = number
