"""Which decoder is chosen for the outputs of a network, and the message if none fits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.decoders.layout import Layout, row_count
from multi_dnn_ros.decoders.registry import recognize

#: Shapes of real exports, input size and number of class names that are known (0: none).
EXPORTS = {
    "YOLOv5, v7": ("yolov5", [(1, 25200, 85)], (640, 640), 0),
    "YOLOv5 P6": ("yolov5", [(1, 102000, 85)], (1280, 1280), 80),
    "YOLOv3 tiny": ("yolov5", [(1, 2535, 85)], (416, 416), 0),
    "YOLOv8": ("yolo", [(1, 84, 8400)], (640, 640), 80),
    "YOLOv8 with free axes": ("yolo", [(0, 84, 0)], None, 80),
    "YOLOv8-seg": ("yolo_masks", [(1, 116, 8400), (1, 32, 160, 160)], (640, 640), 80),
    "YOLOX": ("yolox", [(1, 3549, 85)], (416, 416), 0),
    "YOLOv10": ("end_to_end", [(1, 300, 6)], (640, 640), 80),
    "NanoDet": ("nanodet", [(1, 2704, 80), (1, 676, 80), (1, 169, 80), (1, 2704, 32), (1, 676, 32), (1, 169, 32)],
                (416, 416), 0),
    "NanoDet without a first axis": ("nanodet", [(1600, 80), (400, 80), (100, 80), (1600, 32), (400, 32), (100, 32)],
                                     (320, 320), 0),
    "NanoDet-Plus": ("nanodet_plus", [(1, 3598, 112)], (416, 416), 0),
    "NanoDet-Plus with names": ("nanodet_plus", [(1, 2125, 33)], (320, 320), 1),
    "PicoDet": ("picodet", [(1, 1600, 80), (1, 400, 80), (1, 100, 80), (1, 25, 80), (1, 1600, 32), (1, 400, 32),
                            (1, 100, 32), (1, 25, 32)], (320, 320), 0),
    "RT-DETR by Ultralytics": ("rtdetr", [(1, 300, 84)], (640, 640), 80),
    "RT-DETR": ("postprocessed", [(1, 300), (1, 300, 4), (1, 300)], (640, 640), 80),
    "torchvision": ("postprocessed", [(0, 4), (0,), (0,)], (320, 320), 91),
    "mmdeploy": ("postprocessed", [(1, 100, 5), (1, 100)], (640, 640), 80),
    "DETR": ("detr", [(1, 100, 92), (1, 100, 4)], (800, 800), 0),
    "DETR with names": ("detr", [(1, 300, 81), (1, 300, 4)], (800, 800), 80),
    "RT-DETR of Hugging Face": ("detr_sigmoid", [(1, 300, 80), (1, 300, 4)], (640, 640), 0),
    "SSD": ("ssd", [(1, 3000, 21), (1, 3000, 4)], (300, 300), 0),
    "SSD, boxes first": ("ssd", [(1, 3000, 4), (1, 3000, 21)], (300, 300), 21),
    "FastestDet": ("grid", [(1, 85, 22, 22)], (352, 352), 80),
    "segmentation": ("segmentation", [(1, 19, 512, 1024)], (1024, 512), 0),
    "LSTR": ("lstr", [(1, 7, 2), (1, 7, 8), (1, 7, 2), (1, 7, 8), (1, 240, 240)], (640, 360), 0),
    "UFLDv2 for CULane": ("ufldv2", [(1, 200, 72, 4), (1, 100, 81, 4), (1, 2, 72, 4), (1, 2, 81, 4)], (1600, 320), 0),
    "UFLDv2 for TuSimple": ("ufldv2", [(1, 100, 56, 4), (1, 100, 41, 4), (1, 2, 56, 4), (1, 2, 41, 4)], (800, 320), 0),
    "CLRNet": ("clrnet", [(1, 192, 78)], (800, 320), 0),
    "YOLOv5 of 73 classes": ("yolov5", [(1, 25200, 78)], (640, 640), 73),
    "TwinLiteNet": ("twinlitenet", [(1, 2, 360, 640)] * 2, (640, 360), 0),
    "YOLOP": ("yolop", [(1, 25200, 6), (1, 2, 640, 640), (1, 2, 640, 640)], (640, 640), 0),
    "lane mask": ("lane", [(1, 1, 192, 320)], (320, 192), 0),
}  # fmt: skip


@pytest.mark.parametrize("export", EXPORTS)
def test_the_decoder_of_an_export(export: str) -> None:
    name, shapes, size, classes = EXPORTS[export]
    found = recognize(Layout(tuple(shapes), size, classes))
    assert found.chosen == name, found.why
    assert f"are read as '{name}'" in found.why


@pytest.mark.parametrize(
    ("shapes", "size", "classes", "words"),
    [
        (
            [(1, 8400, 84)],
            (640, 640),
            80,
            r"yolo reads \(1, 4 \+ classes, N\): 8400 rows of 84 columns are prob",
        ),
        ([(1, 56, 8400)], (640, 640), 1, "52 classes in the outputs, but 1 class name: an export for rotated boxes"),
        ([(1, 85, 8400)], (640, 640), 80, "81 classes in the outputs, but 80 class names"),
        ([(1, 1000, 85)], (640, 640), 79, "yolov5 reads"),
        ([(1, 7)], (32, 32), 0, "no decoder reads outputs"),
        ([(1, 3, 80, 80, 85)] * 3, (640, 640), 0, "found 3"),
        ([], (640, 640), 0, "found 0"),
    ],
)
def test_the_nearest_decoders_are_named_with_the_difference(
    shapes: list, size: tuple, classes: int, words: str
) -> None:
    found = recognize(Layout(tuple(shapes), size, classes))
    assert found.chosen == ""
    assert re.search(words, found.why), found.why


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 480, 640), (640, 480)),
        ((1, 120, 160), (640, 480)),
        ((1, 256, 256), (256, 256)),
        ((1, 1, 518, 518), (518, 518)),
    ],
)
def test_class_numbers_and_depths_are_not_taken_for_boxes_or_lanes(shape: tuple, size: tuple[int, int]) -> None:
    assert not recognize(Layout((shape,), size)).decided


def test_other_decoders_that_fit_are_named() -> None:
    found = recognize(Layout(((1, 8400, 85),), (640, 640)))
    assert found.chosen == "yolox"
    assert "other decoders that fit: yolov5 (" in found.why  # YOLOv6, or YOLOX with its boxes decoded


def test_only_decoders_of_a_result_kind() -> None:
    layout = Layout(((1, 85, 22, 22),), (352, 352))
    assert recognize(layout).chosen == "grid"
    assert recognize(layout, "lanes").chosen == "lane"
    yolop = Layout(((1, 25200, 6), (1, 2, 640, 640), (1, 2, 640, 640)), (640, 640))
    assert recognize(yolop, "detections").chosen == "yolop"
    assert recognize(yolop, "lanes").chosen == "yolop_lanes"
    assert recognize(yolop, "lanes").decided
    assert recognize(yolop, "drivable_area").chosen == "yolop_drivable"


# From 160 x 160 pixels on: with fewer cells than classes, rows and columns of a square layout cannot be told apart.
@given(st.integers(5, 40), st.integers(5, 40), st.integers(1, 90))
def test_rows_of_any_input_size_tell_yolov5_from_yolox(across: int, down: int, classes: int) -> None:
    size = (32 * across, 32 * down)
    cells = row_count(size, (8, 16, 32))
    assert recognize(Layout(((1, 3 * cells, 5 + classes),), size, classes)).chosen == "yolov5"
    assert recognize(Layout(((1, cells, 5 + classes),), size, classes)).chosen == "yolox"
