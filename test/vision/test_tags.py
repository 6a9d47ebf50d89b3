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
PLACES = 7


def overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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


@given(BOXES, st.lists(SIZES, min_size=2, max_size=2))
def test_two_tags_of_one_box_do_not_cover_each_other(box, sizes) -> None:
    # A box inside the image with room on all sides: whatever the sizes, above and below are apart.
    box = (200, 150, 200 + box[2] - box[0], 150 + min(box[3] - box[1], 200))
    first, second = (
        (x, y, x + width, y + height)
        for (x, y), (width, height) in zip(place_tags([box, box], sizes, IMAGE), sizes, strict=True)
    )
    assert not overlap(first, second)


def test_a_tag_without_a_free_place_is_above_its_box() -> None:
    box, size = (300, 200, 320, 220), (100, 20)
    corners = place_tags([box] * (PLACES + 1), [size] * (PLACES + 1), IMAGE)
    assert corners[-1] == corners[0] == (300, 180)


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


def test_an_image_smaller_than_a_tag() -> None:
    canvas = np.zeros((8, 8, 3), np.uint8)
    draw_tags(canvas, [Tag("truck 0.90", (1, 1, 6, 6), (200, 0, 0))], 1.0)
    assert place_tags([(1, 1, 6, 6)], [(60, 20)], (8, 8)) == [(0, 0)]
