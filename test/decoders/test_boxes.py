"""Decoders of boxes against the definitions of their networks (test/support), and what all of them have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_decoding import ROWS, Options, detections
from reference_queries import QUERIES

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.grid import GridDecoder
from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.decoders.yolo import YoloDecoder
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

CASES = {**ROWS, **QUERIES}
SIZE = (96, 64)
CLASSES = 3
LABELS = ("car", "truck", "bus")
#: Number of the output that boxes are computed from.
BOX_OUTPUT = {"detr": 1, "detr_sigmoid": 1, "ssd": 1, "postprocessed": 1, "nanodet": 4, "picodet": 5}


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
    if name == "yolov5":  # YOLOP's boxes have the same layout, beside two maps
        maps = [torch.zeros(1, 2, 8, 8)] * 2
        yolop = DECODERS.get("yolop").factory(
            preprocess, decoder.labels, keep=[decoder.labels[number] for number in options.kept],
            score_threshold=options.threshold, iou_threshold=options.iou, max_detections=options.most,
        )  # fmt: skip
        results += [yolop([*raw, *maps], size), in_two_parts(yolop, [*raw, *maps], size)]
    for result in results:
        assert list(result.class_ids) == [row[5] for row in expected]
        np.testing.assert_allclose(result.scores, [row[4] for row in expected], rtol=1e-4)
        np.testing.assert_allclose(
            result.boxes, np.array([row[:4] for row in expected], np.float32).reshape(-1, 4), rtol=1e-4, atol=0.02
        )
        assert result.boxes.dtype == result.scores.dtype == np.float32
        assert result.class_ids.dtype == np.int64


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
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 1e3, 1e12, 1e33]), size=sizes)
def test_boxes_lie_inside_the_image_whatever_the_network_says(
    name: str, seed: int, scale: float, size: tuple[int, int]
) -> None:
    """A network with bad weights may return finite numbers of any size; the boxes are then finite, too."""
    raw = CASES[name].outputs(seed, SIZE, CLASSES)
    if name in BOX_OUTPUT:
        raw[BOX_OUTPUT[name]] *= scale
    elif name == "yolo_masks":
        raw[0][0, :4] *= scale
    elif name == "nanodet_plus":
        raw[0][0, :, CLASSES:] *= scale
    else:
        raw[0][0, :, :4] *= scale
    result = make(name, Preprocess(*SIZE, fit="letterbox"), Options(threshold=0.01))(raw, size)
    assert np.isfinite(result.boxes).all()
    x1, y1, x2, y2 = result.boxes.T
    assert ((x1 >= 0) & (y1 >= 0) & (x2 <= size[1]) & (y2 <= size[0]) & (x1 < x2) & (y1 < y2)).all()


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_number_of_classes_or_outputs_is_reported(name: str) -> None:
    raw = CASES[name].outputs(0, SIZE, 5)
    make(name, Preprocess(*SIZE), Options(), classes=5).check(raw)
    if name in ("end_to_end", "rtdetr_selected", "postprocessed"):  # no shape tells how many classes there are
        return
    with pytest.raises(OutputError, match=rf"decoder {name} with \d+ class.* reads .*: .*class"):
        make(name, Preprocess(*SIZE), Options(), classes=9).check(raw)
    with pytest.raises(OutputError, match=f"decoder {name}"):
        make(name, Preprocess(*SIZE), Options(), classes=5).check(raw[:-1])


def test_postprocessed_outputs_in_any_order() -> None:
    labels, boxes, scores = QUERIES["postprocessed"].outputs(3, SIZE, CLASSES)
    decoder = make("postprocessed", Preprocess(*SIZE), Options())
    expected = decoder([labels, boxes, scores], (200, 300))
    assert len(expected) > 3
    together = torch.cat([boxes, scores[:, :, None]], 2)
    for outputs in ([boxes, scores, labels], [scores, labels, boxes], [boxes[0], labels[0], scores[0]],
                    [together, labels], [labels, together]):  # fmt: skip
        found = decoder(outputs, (200, 300))
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    with pytest.raises(OutputError, match="no output other than the boxes holds whole numbers"):
        decoder([scores, boxes, scores], (200, 300))
    assert not len(decoder([labels[:, :0], boxes[:, :0], scores[:, :0]], (200, 300)))


def test_grid_decodes_an_encoded_box() -> None:
    """One cell of FastestDet's head, with the formula of its documentation."""
    raw = torch.full((1, 5 + len(LABELS), 22, 22), 0.0)
    raw[0, 0, 10, 5] = 0.81
    raw[0, 1:3, 10, 5] = torch.atanh(torch.tensor([0.25, 0.5]))
    raw[0, 3:5, 10, 5] = torch.logit(torch.tensor([0.2, 0.1]))
    raw[0, 5 + 2, 10, 5] = 0.64
    result = GridDecoder(Preprocess(352, 352), LABELS)((raw,), (480, 640))
    (box,) = result.boxes
    cx, cy, w, h = (5 + 0.25) / 22 * 640, (10 + 0.5) / 22 * 480, 0.2 * 640, 0.1 * 480
    np.testing.assert_allclose(box, [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], rtol=1e-4)
    assert result.scores[0] == pytest.approx(0.81**0.6 * 0.64**0.4, rel=1e-4)
    assert result.labels[result.class_ids[0]] == "bus"


def yolo_columns(columns: list[list[float]], **options: float) -> Detections:
    """Decode columns of cx, cy, w, h and a probability per class, in an image of the input's size."""
    raw = torch.zeros(1, 4 + len(LABELS), len(columns) + 1)
    raw[0, :, : len(columns)] = torch.tensor(columns, dtype=torch.float32).T
    result: Detections = YoloDecoder(Preprocess(320, 240), LABELS, **options)((raw,), (240, 320))  # type: ignore[arg-type]
    return result


def test_the_threshold_nms_per_class_and_the_order_of_equal_scores() -> None:
    car, truck = [160.0, 120.0, 40.0, 20.0, 0.8, 0.0, 0.0], [162.0, 120.0, 40.0, 20.0, 0.0, 0.8, 0.0]
    worse, other = [161.0, 120.0, 40.0, 20.0, 0.7, 0.0, 0.0], [60.0, 60.0, 20.0, 20.0, 0.8, 0.0, 0.0]
    weak = [260.0, 200.0, 20.0, 20.0, 0.3, 0.0, 0.0]
    found = yolo_columns([weak, worse, truck, car, other])
    np.testing.assert_array_equal(found.class_ids, [1, 0, 0])  # a car does not suppress a truck
    np.testing.assert_allclose(found.boxes, [[142, 110, 182, 130], [140, 110, 180, 130], [50, 50, 70, 70]])
    assert len(yolo_columns([car, worse], iou_threshold=0.99)) == 2
    assert len(yolo_columns([weak, car], score_threshold=0.25)) == 2


@pytest.mark.parametrize("builder", ["ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn", "fcos_resnet50_fpn"])
def test_raw_heads_of_torchvision_in_two_parts_have_the_same_results(builder: str) -> None:
    """test/models compares them with torchvision's own; test/gpu checks that the first part can be captured."""
    size = {} if builder.startswith("ssd") else {"input_width": 160, "input_height": 128}
    config = DnnConfig(role="object", model=f"torchvision:{builder}", weights="random", num_classes=6,
                       labels=["none", "car", "truck", "bus", "van", "tram"], **size)  # fmt: skip
    dnn = load_dnn("a", config)
    with torch.inference_mode():
        shapes = [output.shape for output in dnn.module(*dnn.example_inputs()).values()]
    decoder = dnn.decoder
    for seed, kept in enumerate([(), (2, 5)]):  # as keep = [truck, tram] would set it
        decoder.kept = kept
        generator = torch.Generator().manual_seed(seed)
        outputs = [torch.randn(shape, generator=generator) * 1.5 for shape in shapes]
        for score, iou, most in ((0.3, 0.5, 100), (0.6, 0.3, 7), (0.95, 0.5, 100)):
            decoder.score_threshold, decoder.iou_threshold, decoder.max_detections = score, iou, most
            expected, found = decoder(outputs, (240, 400)), in_two_parts(decoder, outputs, (240, 400))
            # By position, as rounding may exchange boxes with almost equal scores.
            one, two = (result.boxes[:, 0].argsort() for result in (expected, found))
            np.testing.assert_allclose(found.scores[two], expected.scores[one], rtol=1e-5)
            np.testing.assert_array_equal(found.class_ids[two], expected.class_ids[one])
            np.testing.assert_allclose(found.boxes[two], expected.boxes[one], rtol=1e-4, atol=1e-3)
            assert len(found.scores) or score > 0.9
            assert not kept or set(found.class_ids) <= set(kept)
    for output in outputs:
        output[0, 3] = float("nan")
    with pytest.raises(OutputError, match="holds NaN or infinite values"):
        in_two_parts(decoder, outputs, (240, 400))
