"""Tiles cover the image, results are in pixels of the image, and what two tiles show is reported once."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.segmentation import SegmentationDecoder
from multi_dnn_ros.decoders.yolo import YoloDecoder
from multi_dnn_ros.models.dnn import Dnn, Output
from multi_dnn_ros.vision.merging import merge_detections
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Detections
from multi_dnn_ros.vision.view import View, Window

LABELS = ("car", "person")

grids = st.builds(
    lambda columns, rows, overlap: View(None, columns, rows, overlap),
    st.integers(1, 4),
    st.integers(1, 4),
    st.floats(0.02, 0.5),
)


@given(grids, st.integers(8, 3000), st.integers(8, 3000))
def test_tiles_have_one_size_and_cover_the_image(view: View, height: int, width: int) -> None:
    windows = view.windows((height, width))
    assert len(windows) == view.tiles
    assert len({window.size for window in windows}) == 1
    for begin, end, length in (("left", "right", width), ("top", "bottom", height)):
        spans = sorted({(getattr(window, begin), getattr(window, end)) for window in windows})
        assert (spans[0][0], spans[-1][1]) == (0, length)
        assert all(after[0] <= before[1] for before, after in pairwise(spans))


def seen(objects: npt.NDArray[np.float32], ids: list[int], window: Window) -> Detections:
    """What a perfect detector finds in a tile: the visible part of each object, in pixels of the image."""
    low = np.array([window.left, window.top] * 2, np.float32)
    high = np.array([window.right, window.bottom] * 2, np.float32)
    boxes = objects.clip(low, high)
    visible = np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    scores = np.linspace(0.9, 0.5, len(objects), dtype=np.float32)[visible]
    return Detections(boxes[visible], scores, np.array(ids, np.int64)[visible], LABELS)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[View, tuple[int, int], npt.NDArray[np.float32], list[int]]:
    """A view and objects that do not touch each other, each in another cell of a raster."""
    view, size = draw(grids), (draw(st.integers(200, 1200)), draw(st.integers(200, 1200)))
    across, down = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    objects, ids = [], []
    for cell in range(across * down):
        if not draw(st.booleans()):
            continue
        left, top = (cell % across) * size[1] / across, (cell // across) * size[0] / down
        x = sorted(draw(st.lists(st.floats(0.02, 0.98), min_size=2, max_size=2)))
        y = sorted(draw(st.lists(st.floats(0.02, 0.98), min_size=2, max_size=2)))
        box = [left + x[0] * size[1] / across, top + y[0] * size[0] / down,
               left + x[1] * size[1] / across, top + y[1] * size[0] / down]  # fmt: skip
        if box[2] - box[0] > 4 and box[3] - box[1] > 4:
            objects.append(box)
            ids.append(draw(st.integers(0, 1)))
    assume(objects)
    return view, size, np.array(objects, np.float32), ids


@given(scenes(), st.floats(0.3, 0.7))
@settings(deadline=None, max_examples=200)
def test_an_object_that_several_tiles_show_is_reported_once_and_whole(scene: Any, iou_threshold: float) -> None:
    view, size, objects, ids = scene
    windows = view.windows(size)
    found = merge_detections([seen(objects, ids, window) for window in windows], windows, iou_threshold, 100)
    assert len(found) == len(objects)
    assert (np.diff(found.scores) <= 0).all()
    for box, number in zip(objects, ids, strict=True):
        error = np.abs(found.boxes - box).max(1)
        nearest = int(error.argmin())
        # A box that ends within a pixel (or 1 %) of its tile's edge is taken as cut there and completed.
        assert error[nearest] < 0.5
        assert found.class_ids[nearest] == number


def test_neighbours_in_the_overlap_stay_two_objects() -> None:
    windows = View(None, 2, 1, 0.25).windows((100, 175))
    assert windows == (Window(0, 0, 100, 100), Window(75, 0, 100, 100))
    objects = np.array([[60, 20, 84, 60], [88, 20, 120, 60]], np.float32)  # side by side, both cut by a border
    found = merge_detections([seen(objects, [0, 0], window) for window in windows], windows, 0.5, 100)
    np.testing.assert_allclose(sorted(found.boxes.tolist()), objects)
    other = [seen(objects[:1], [0], windows[0]), seen(objects[:1], [1], windows[1])]
    assert len(merge_detections(other, windows, 0.5, 100)) == 2  # the same position, but another class
    assert len(merge_detections([seen(objects, [0, 0], window) for window in windows], windows, 0.5, 1)) == 1


def test_many_boxes_are_merged_without_a_table_of_all_pairs() -> None:
    """64 tiles with the largest max_detections have hundreds of thousands of boxes."""
    windows = View(None, 2, 1, 0.25).windows((100, 175))
    left = np.arange(1500, dtype=np.float32)[:, None] * 0.04
    boxes = np.concatenate([left, np.full_like(left, 10), left + 0.04, np.full_like(left, 30)], axis=1)
    first = Detections(boxes, np.linspace(0.9, 0.5, 1500, dtype=np.float32), np.zeros(1500, np.int64), LABELS)
    none = Detections(boxes[:0], first.scores[:0], first.class_ids[:0], LABELS)
    tracemalloc.start()
    try:
        found = merge_detections([first, none], windows, 0.5, 10_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found.boxes, boxes)
    assert peak < 5e6  # one number for each of 1500 x 1500 pairs takes 9 MB


@given(grids, st.integers(40, 400), st.integers(40, 400), st.data())
@settings(deadline=None, max_examples=50)
def test_boxes_of_tiles_return_to_the_image_through_the_decoder(view: View, height: int, width: int, data: Any) -> None:
    """The outputs have a row per tile."""
    preprocess = Preprocess(96, 64, fit=data.draw(st.sampled_from(["stretch", "letterbox"])))
    dnn = Dnn("far", "object", torch.nn.Identity(), preprocess,
              {"": Output(YoloDecoder(preprocess, LABELS), LABELS, "detections")}, view)  # fmt: skip
    windows = view.windows((height, width))
    window = windows[data.draw(st.integers(0, len(windows) - 1))]
    x, y = window.left + 0.3 * window.width, window.top + 0.3 * window.height
    box = np.array([x, y, x + 0.4 * window.width, y + 0.4 * window.height], np.float32)
    raw = torch.zeros(len(windows), 6, 3)
    for number, tile in enumerate(windows):
        part = seen(box[None], [0], tile)
        geometry = preprocess.geometry(tile.size)
        for x1, y1, x2, y2 in part.boxes.tolist():
            left, right = ((u - tile.left) * geometry.scale_x + geometry.left for u in (x1, x2))
            top, bottom = ((v - tile.top) * geometry.scale_y + geometry.top for v in (y1, y2))
            raw[number, :, 0] = torch.tensor(
                [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0.9, 0]
            )
    found = dnn.results((raw,), (height, width))
    assert len(found) == 1
    np.testing.assert_allclose(found.boxes[0], box, atol=0.5)
    assert tuple(dnn.inputs(torch.zeros(height, width, 3, dtype=torch.uint8))[0].shape) == (len(windows), 3, 64, 96)


@given(grids, st.integers(64, 400), st.integers(64, 400), st.integers(1, 99), st.integers(1, 99))
@settings(deadline=None, max_examples=50)
def test_a_border_in_a_mask_stays_where_it_is(view: View, height: int, width: int, u: int, v: int) -> None:
    """The masks of the tiles have the resolution of the image."""
    across, down = u * width // 100, v * height // 100
    scene = np.zeros((height, width), np.uint8)
    scene[down:, across:] = 1
    windows = view.windows((height, width))
    tile_height, tile_width = windows[0].size
    preprocess = Preprocess(tile_width, tile_height)
    dnn = Dnn("far", "ground", torch.nn.Identity(), preprocess,
              {"": Output(SegmentationDecoder(preprocess, LABELS), LABELS, "semantic_mask")}, view)  # fmt: skip
    tiles = np.stack([scene[tile.top : tile.bottom, tile.left : tile.right] for tile in windows])
    raw = torch.from_numpy(np.stack([1.0 - tiles, tiles], 1).astype(np.float32))
    pixels = dnn.results((raw,), (height, width)).pixels
    parts = dnn.results.in_two_parts()
    assert parts is not None
    condensed = parts.condense((raw,))
    np.testing.assert_array_equal(parts.decode(condensed, (height, width)).pixels, pixels)
    np.testing.assert_array_equal(pixels, scene)
    assert not (pixels == NO_CLASS).any()
