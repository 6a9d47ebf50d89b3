"""Decoders of masks against a plain formula, whole and in two parts, and masks of a part of the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.lane_map import DrivableDecoder
from multi_dnn_ros.decoders.segmentation import SegmentationDecoder
from multi_dnn_ros.decoders.yolo import YoloInstancesDecoder
from multi_dnn_ros.decoders.yolop import YolopDrivableDecoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kinds import place_instances
from multi_dnn_ros.vision.results import NO_CLASS, OutputError
from multi_dnn_ros.vision.view import Window

SIZE = (60, 80)


def logits_of(classes: int, seed: int) -> torch.Tensor:
    return torch.randn(1, classes, 12, 16, generator=torch.Generator().manual_seed(seed)) * 3


def probabilities(logits: torch.Tensor) -> Any:
    """(classes, h, w); with one class: its probability, then that of the rest."""
    values = logits[0].double().numpy()
    if len(values) == 1:
        one = 1 / (1 + np.exp(-values[0]))
        return np.stack([one, 1 - one])
    powers = np.exp(values - values.max(0))
    return powers / powers.sum(0)


@given(
    classes=st.integers(1, 6),
    seed=st.integers(0, 1000),
    threshold=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    data=st.data(),
)
@settings(deadline=None)
def test_a_pixel_has_its_most_probable_class_or_none(classes: int, seed: int, threshold: float, data: Any) -> None:
    labels = [f"class{number}" for number in range(classes)]
    keep = data.draw(st.lists(st.sampled_from(labels), unique=True))
    decoder = SegmentationDecoder(Preprocess(64, 48), labels, keep=keep, score_threshold=threshold)
    logits = logits_of(classes, seed)
    found = decoder((logits,), SIZE)
    scores = probabilities(logits)[:classes]
    expected = scores.argmax(0)
    under = scores.max(0) < (threshold or (0.5 if classes == 1 else 0.0))
    other = ~np.isin(expected, [labels.index(name) for name in keep]) if keep else np.zeros_like(under)
    np.testing.assert_array_equal(found.class_ids, np.where(under | other, NO_CLASS, expected))
    assert found.labels == tuple(labels)
    parts = decoder.in_two_parts()
    divided = parts.decode(parts.condense((logits,)), SIZE)
    np.testing.assert_array_equal(divided.class_ids, found.class_ids)
    assert found.pixels.shape == SIZE


@given(classes=st.integers(1, 4), seed=st.integers(0, 1000), threshold=st.sampled_from([0.0, 0.2, 0.7]))
@settings(deadline=None)
def test_the_drivable_area_is_where_its_classes_are_probable(classes: int, seed: int, threshold: float) -> None:
    labels = ["none", "free", "other", "sky"][:classes] if classes > 1 else ["free"]
    keep = ["free", "other"] if classes > 2 else []
    decoder = DrivableDecoder(Preprocess(64, 48), labels, keep=keep, score_threshold=threshold)
    logits = logits_of(classes, seed)
    found = decoder((logits,), SIZE)
    probability = probabilities(logits)
    area = probability[0] if classes == 1 else probability[1:3].sum(0) if keep else probability[1]
    np.testing.assert_array_equal(found.class_ids, np.where(area >= (threshold or 0.5), 0, NO_CLASS))
    parts = decoder.in_two_parts()
    if parts is not None:
        np.testing.assert_array_equal(parts.decode(parts.condense((logits,)), SIZE).class_ids, found.class_ids)


def test_wrong_shapes_and_too_many_classes_are_reported() -> None:
    with pytest.raises(OutputError, match=r"decoder segmentation with 2 class.* 3 classes in the outputs"):
        SegmentationDecoder(Preprocess(64, 48), ["a", "b"])((logits_of(3, 0),), SIZE)
    with pytest.raises(ValueError, match="at most 255"):
        SegmentationDecoder(Preprocess(64, 48), [f"c{number}" for number in range(256)])


def test_a_mask_is_the_positive_part_of_its_prototypes_inside_the_box() -> None:
    rows = torch.zeros(1, 4 + 1 + 32, 8)
    rows[0, :5, 3] = torch.tensor([32.0, 24.0, 32.0, 16.0, 0.9])  # x 16..48, y 16..32 of the input
    rows[0, 5, 3], rows[0, 6, 3] = 1.0, -1.0
    prototypes = torch.zeros(1, 32, 12, 16)
    prototypes[0, 0] = 1.0
    prototypes[0, 1, :, 8:] = 2.0  # the right half is negative
    found = YoloInstancesDecoder(Preprocess(64, 48, fit="stretch"), ["thing"])((rows, prototypes), (96, 128))
    expected = np.zeros((12, 16), np.uint8)
    expected[4:8, 4:8] = 1
    np.testing.assert_array_equal(found.numbers, expected)
    np.testing.assert_allclose(found.detections.boxes, [[32, 32, 96, 64]])
    placed = place_instances(found, Window(10, 20, 128, 96), (200, 300))
    np.testing.assert_allclose(placed.detections.boxes, [[42, 52, 106, 84]])
    assert placed.pixels[20 + 33, 10 + 33] == 1
    assert placed.pixels.sum() == 32 * 32


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.6, 0.9])
def test_drivable_of_yolop_is_where_its_share_of_the_two_probabilities_is_large_enough(threshold: float) -> None:
    area, lines = torch.rand(2, 1, 2, 32, 64, generator=torch.Generator().manual_seed(0))
    rows = torch.rand(1, 126, 6)
    decoder = YolopDrivableDecoder(Preprocess(64, 32), ("none", "drivable"), score_threshold=threshold)
    share = (area[0, 1] / area[0].sum(0)).numpy()
    expected = np.where(share >= (threshold or 0.5), 0, NO_CLASS)
    assert set(np.unique(expected)) == {0, NO_CLASS}
    parts = decoder.in_two_parts()
    assert parts is not None
    for outputs in ([rows, area, lines], [area, lines, rows]):
        for found in (decoder(outputs, (32, 64)), parts.decode(parts.condense(outputs), (32, 64))):
            np.testing.assert_array_equal(found.class_ids, expected)
    with pytest.raises(OutputError, match=r"decoder yolop_drivable with .* reads .* twice"):
        decoder.check([area])
