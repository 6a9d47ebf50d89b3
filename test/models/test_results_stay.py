"""The built-in networks still find on generated roads what `expected_results.json` lists.

Boxes agree within 0.5 px, lane lines within 1 px, because a faster decoder must not find anything else. The file was
written when the resize of images changed, by decoders that agreed with those of version 0.1.0 on the former one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_network import run_network
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.training.scenes import SceneGenerator
from multi_dnn_ros.vision.results import Detections, Lanes

EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("expected_results.json").read_text(encoding="utf-8"))
SIZES = ((640, 480), (1280, 720))
BOX_PX, LANE_PX, SCORE = 0.5, 1.0, 0.01


@pytest.mark.parametrize(("role", "least"), [("lane", 26), ("object", 21), ("pedestrian", 5)])
def test_results(role: str, least: int) -> None:
    """With the threshold for generated roads, which finds more. least: number of results that are compared."""
    dnn = load_dnn(role, DnnConfig(role=role, model=f"builtin:{role}", score_threshold=0.4), onnx=True)
    compared = 0
    for width, height in SIZES:
        expected = EXPECTED[f"{role} {width}x{height}"]
        drive = SceneGenerator(width, height, 3).drive(len(expected), 5.0)
        for number, before in enumerate(expected):
            image = np.ascontiguousarray(drive.frame(number).image)
            found = dnn.results(run_network(dnn.module, *dnn.array_inputs(image)), (height, width))
            if isinstance(found, Detections):
                assert found.class_ids.tolist() == before["class_ids"]
                np.testing.assert_allclose(found.boxes, np.reshape(before["boxes"], (-1, 4)), rtol=0, atol=BOX_PX)
                np.testing.assert_allclose(found.scores, before["scores"], rtol=0, atol=SCORE)
                compared += len(found.boxes)
                continue
            assert isinstance(found, Lanes)
            assert [lane.number for lane in found.lanes] == [lane["number"] for lane in before["lanes"]]
            for lane, former in zip(found.lanes, before["lanes"], strict=True):
                np.testing.assert_allclose(lane.points[::6], former["points"], rtol=0, atol=LANE_PX)
                assert lane.score == pytest.approx(former["score"], abs=SCORE)
            np.testing.assert_allclose(np.bincount(found.mask.reshape(-1)), before["mask"], rtol=0.01, atol=20)
            compared += len(found.lanes)
    assert compared >= least
