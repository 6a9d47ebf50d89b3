"""Decoding in two parts has the same results as in one. test/gpu checks that the first part can be captured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.results import Detections, OutputError

BUILDERS = ("ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn", "fcos_resnet50_fpn")
SOURCE = (240, 400)


def load(builder: str) -> Dnn:
    size = {} if builder.startswith("ssd") else {"input_width": 160, "input_height": 128}
    config = DnnConfig(role="object", model=f"torchvision:{builder}", weights="random", num_classes=6,
                       labels=["none", "car", "truck", "bus", "van", "tram"], **size)  # fmt: skip
    return load_dnn("a", config)


def output_shapes(dnn: Dnn) -> list[torch.Size]:
    with torch.inference_mode():
        return [output.shape for output in dnn.module(*dnn.example_inputs()).values()]


def raw_outputs(shapes: list[torch.Size], seed: int) -> tuple[torch.Tensor, ...]:
    """Random outputs in the network's shapes, with many boxes above every threshold."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) * 1.5 for shape in shapes)


@pytest.mark.parametrize("builder", BUILDERS)
def test_decoding_in_two_parts_has_the_same_results(builder: str) -> None:
    dnn = load(builder)
    shapes = output_shapes(dnn)
    for kept in ((), (2, 5)):  # as keep = [truck, tram] would set it
        dnn.decoder.kept = kept
        parts = dnn.decoder.in_two_parts()
        assert parts is not None
        for seed, (score, iou, most) in enumerate([(0.3, 0.5, 100), (0.6, 0.3, 7), (0.95, 0.5, 100), (0.0, 0.7, 40)]):
            dnn.decoder.score_threshold, dnn.decoder.iou_threshold, dnn.decoder.max_detections = score, iou, most
            outputs = raw_outputs(shapes, seed)
            expected = dnn.decoder(outputs, SOURCE)
            condensed = parts.condense(outputs)
            assert len({len(tensor) for tensor in condensed}) == 1
            found = parts.decode(condensed, SOURCE)
            assert isinstance(expected, Detections)
            assert isinstance(found, Detections)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
            np.testing.assert_array_equal(found.class_ids, expected.class_ids)
            np.testing.assert_allclose(found.boxes, expected.boxes, rtol=1e-4, atol=1e-3)
            if score < 0.9:
                assert len(found.scores)


def test_nan_in_candidates_is_an_error() -> None:
    dnn = load(BUILDERS[0])
    parts = dnn.decoder.in_two_parts()
    assert parts is not None
    outputs = [tensor.clone() for tensor in raw_outputs(output_shapes(dnn), 0)]
    for output in outputs:
        output[0, 3] = float("nan")
    with pytest.raises(OutputError, match=r"the scores or boxes of \d+ candidates holds NaN or infinite values"):
        parts.decode(parts.condense(outputs), SOURCE)
