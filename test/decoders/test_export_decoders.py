"""Decoders of real exports against straightforward reference decoders, and what all of them have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_decoding import ROWS, Options, detections
from reference_queries import QUERIES

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

CASES = {**ROWS, **QUERIES}
SIZE = (96, 64)
CLASSES = 3


def make(name: str, preprocess: Preprocess, options: Options, classes: int = CLASSES) -> Decoder:
    labels = [f"class {number}" for number in range(classes + CASES[name].background)]
    return DECODERS.get(name).factory(
        preprocess, labels, keep=[labels[number] for number in options.kept], score_threshold=options.threshold,
        iou_threshold=options.iou, max_detections=options.most,
    )  # fmt: skip


def in_two_parts(decoder: Decoder, outputs: list[torch.Tensor], size: tuple[int, int]) -> Detections:
    parts = decoder.in_two_parts()
    assert parts is not None
    return parts.decode(parts.condense(outputs), size)


sizes = st.tuples(st.integers(20, 900), st.integers(20, 900))
all_options = st.builds(
    Options,
    threshold=st.sampled_from([0.05, 0.3, 0.5, 0.9]),
    iou=st.sampled_from([0.1901, 0.4801, 0.7301]),
    most=st.sampled_from([1, 7, 100]),
    kept=st.sampled_from([(), (1,), (1, 2)]),
)
preprocesses = st.builds(
    lambda fit, centered: Preprocess(*SIZE, fit=fit, centered=centered),
    st.sampled_from(["stretch", "letterbox"]),
    st.booleans(),
)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), preprocess=preprocesses, size=sizes, options=all_options)
@example(430, Preprocess(*SIZE, fit="stretch", centered=False), (20, 20), Options(0.9, 0.1901, most=7))
def test_detections_are_those_of_the_definition(
    name: str, seed: int, preprocess: Preprocess, size: tuple[int, int], options: Options
) -> None:
    case = CASES[name]
    raw = case.outputs(seed, SIZE, CLASSES)
    expected = detections(case.read([tensor.numpy() for tensor in raw], SIZE), preprocess, size, options, case.suppress)
    decoder = make(name, preprocess, options)
    results = [decoder(raw, size)]
    if decoder.in_two_parts() is not None:
        results.append(in_two_parts(decoder, raw, size))
    for result in results:
        assert list(result.class_ids) == [row[5] for row in expected]
        np.testing.assert_allclose(result.scores, [row[4] for row in expected], rtol=1e-4)
        np.testing.assert_allclose(
            result.boxes, np.array([row[:4] for row in expected], np.float32).reshape(-1, 4), rtol=1e-4, atol=0.02
        )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    case = CASES[name]
    decoder = make(name, Preprocess(*SIZE), Options())
    for index, output in enumerate(case.outputs(1, SIZE, CLASSES)):
        if not output.is_floating_point():
            continue
        raw = case.outputs(1, SIZE, CLASSES)
        raw[index].view(-1)[-1] = bad
        with pytest.raises(OutputError, match=f"output {index} holds NaN or infinite values: 1 of"):
            decoder(raw, (40, 40))
        if decoder.in_two_parts() is not None:
            with pytest.raises(OutputError, match="holds NaN or infinite values"):
                in_two_parts(decoder, raw, (40, 40))


@pytest.mark.parametrize("name", CASES)
def test_without_an_object_the_result_is_empty(name: str) -> None:
    raw = [torch.full_like(tensor, -9) if name.startswith("detr_") else torch.zeros_like(tensor)
           for tensor in CASES[name].outputs(1, SIZE, CLASSES)]  # fmt: skip
    if name == "detr":
        raw[0][0, :, -1] = 9.0
    decoder = make(name, Preprocess(*SIZE), Options())
    result = decoder(raw, (30, 50))
    assert result.boxes.shape == (0, 4)
    assert result.boxes.dtype == result.scores.dtype == np.float32
    assert result.class_ids.dtype == np.int64
    assert len(result.labels) == CLASSES + CASES[name].background


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 1e3, 1e12, 1e33]), size=sizes)
def test_boxes_lie_inside_the_image_whatever_the_network_says(
    name: str, seed: int, scale: float, size: tuple[int, int]
) -> None:
    """A network with bad weights may return finite numbers of any size; the boxes are then finite, too."""
    raw = CASES[name].outputs(seed, SIZE, CLASSES)
    if name in ("yolov5", "yolox", "end_to_end", "rtdetr", "rtdetr_selected"):
        raw[0][0, :, :4] *= scale
    elif name == "yolo_masks":
        raw[0][0, :4] *= scale
    elif name == "nanodet_plus":
        raw[0][0, :, CLASSES:] *= scale
    else:
        index = {"detr": 1, "detr_sigmoid": 1, "ssd": 1, "postprocessed": 1, "nanodet": 4, "picodet": 5}[name]
        raw[index] *= scale
    result = make(name, Preprocess(*SIZE, fit="letterbox"), Options(threshold=0.01))(raw, size)
    assert np.isfinite(result.boxes).all()
    x1, y1, x2, y2 = result.boxes.T
    assert ((x1 >= 0) & (y1 >= 0) & (x2 <= size[1]) & (y2 <= size[0]) & (x1 < x2) & (y1 < y2)).all()


@pytest.mark.parametrize("name", CASES)
def test_every_layout_is_recognized_and_a_wrong_number_of_classes_is_reported(name: str) -> None:
    raw = CASES[name].outputs(0, SIZE, 5)
    make(name, Preprocess(*SIZE), Options(), classes=5).check(raw)
    if name in ("end_to_end", "rtdetr_selected", "postprocessed"):  # no shape tells how many classes there are
        return
    with pytest.raises(OutputError, match=rf"decoder {name} with \d+ class.* reads .*: .*class"):
        make(name, Preprocess(*SIZE), Options(), classes=9).check(raw)
    with pytest.raises(OutputError, match=f"decoder {name}"):
        make(name, Preprocess(*SIZE), Options(), classes=5).check(raw[:-1])


def test_a_class_without_a_name_is_an_error() -> None:
    raw = torch.tensor([[[1.0, 1.0, 9.0, 9.0, 0.9, 7.0]]])
    with pytest.raises(OutputError, match="class 7 in the outputs; labels has 3 names"):
        make("end_to_end", Preprocess(*SIZE), Options())([raw], (20, 20))


def test_nanodet_without_a_first_axis() -> None:
    options = Options()
    raw = CASES["nanodet"].outputs(3, SIZE, CLASSES)
    decoder = make("nanodet", Preprocess(*SIZE), options)
    bare = [output[0] for output in raw]
    decoder.check(bare)
    expected = decoder(raw, (300, 400))
    assert len(expected)
    for found in (decoder(bare, (300, 400)), in_two_parts(decoder, bare, (300, 400))):
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        np.testing.assert_array_equal(found.class_ids, expected.class_ids)


def test_postprocessed_outputs_in_any_order() -> None:
    labels, boxes, scores = QUERIES["postprocessed"].outputs(3, SIZE, CLASSES)
    decoder = make("postprocessed", Preprocess(*SIZE), Options())
    expected = decoder([labels, boxes, scores], (200, 300))
    assert len(expected) > 3
    together = torch.cat([boxes, scores[:, :, None]], 2)
    for outputs in ([boxes, scores, labels], [scores, labels, boxes], [boxes[0], labels[0], scores[0]],
                    [together, labels], [labels, together]):  # fmt: skip
        decoder.check(outputs)
        found = decoder(outputs, (200, 300))
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    with pytest.raises(OutputError, match="no output other than the boxes holds whole numbers"):
        decoder([scores, boxes, scores], (200, 300))
    assert not len(decoder([labels[:, :0], boxes[:, :0], scores[:, :0]], (200, 300)))
