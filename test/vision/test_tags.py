"""Tags of boxes are inside the image and do not cover each other while there is room."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.vision.tags import Tag, draw_tags, place_tags

IMAGE = (640, 480)
BOXES = st.tuples(st.integers(-50, 639), st.integers(-50, 479), st.integers(1, 300), st.integers(1, 300)).map(
    lambda it: (it[0], it[1], it[0] + it[2], it[1] + it[3])
)
SIZES = st.tuples(st.integers(1, 150), st.integers(1, 30))


@given(st.lists(st.tuples(BOXES, SIZES), max_size=30))
def test_tags_are_inside_the_image_and_the_first_is_above_its_box(rows) -> None:
    boxes, sizes = [box for box, _ in rows], [size for _, size in rows]
    corners = place_tags(boxes, sizes, IMAGE)
    assert len(corners) == len(rows)
    for (x, y), (width, height) in zip(corners, sizes, strict=True):
        assert 0 <= x <= IMAGE[0] - width
        assert 0 <= y <= IMAGE[1] - height
    if rows:
        (x1, y1, _, _), (width, height) = rows[0]
        assert corners[0] == (min(max(x1, 0), IMAGE[0] - width), min(max(y1 - height, 0), IMAGE[1] - height))


def test_tags_that_would_overlap_are_all_visible() -> None:
    """Two neighbours whose tags are wider than they: each colour covers the whole area of its tag."""
    red, green = (213, 94, 0), (0, 158, 115)
    canvas = np.full((200, 400, 3), 90, np.uint8)
    alone = canvas.copy()
    draw_tags(alone, [Tag("pedestrian 0.86", (150, 80, 165, 120), red)], 0.5)
    draw_tags(
        canvas,
        [Tag("pedestrian 0.86", (150, 80, 165, 120), red), Tag("pedestrian 0.76", (170, 84, 185, 120), green)],
        0.5,
    )
    area = (alone == red).all(2).sum()
    assert area > 200
    assert (canvas == red).all(2).sum() == area
    assert (canvas == green).all(2).sum() > 0.9 * area
