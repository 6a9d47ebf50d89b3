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
import torch

from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.training.scenes import SceneGenerator
from multi_dnn_ros.vision.results import Lanes

EXPECTED = Path(__file__).with_name("expected_results.json")
SIZES = ((640, 480), (1280, 720))
FRAMES = 6
BOX_PX, LANE_PX, SCORE = 0.5, 1.0, 0.01


def results() -> dict[str, list[dict[str, Any]]]:
    """By network and size, the results for each image, with the threshold for generated roads, which finds more."""
    found: dict[str, list[dict[str, Any]]] = {}
    roles = ("lane", "object", "pedestrian")
    dnns = {role: load_dnn(role, DnnConfig(role=role, model=f"builtin:{role}", score_threshold=0.4)) for role in roles}
    for width, height in SIZES:
        drive = SceneGenerator(width, height, 3).drive(FRAMES, 5.0)
        for number in range(FRAMES):
            image = np.ascontiguousarray(drive.frame(number).image)
            for role, dnn in dnns.items():
                with torch.inference_mode():
                    output = dnn.module(*dnn.inputs(torch.from_numpy(image)))
                    decoded = dnn.decoder([output], (height, width))
                found.setdefault(f"{role} {width}x{height}", []).append(_described(decoded))
    return found


def _described(decoded: Any) -> dict[str, Any]:
    if isinstance(decoded, Lanes):
        return {
            "mask": np.bincount(decoded.mask.reshape(-1)).tolist(),
            "lanes": [
                {"number": lane.number, "score": round(lane.score, 4), "points": lane.points[::6].round(2).tolist()}
                for lane in decoded.lanes
            ],
        }
    return {
        "boxes": decoded.boxes.round(3).tolist(),
        "scores": decoded.scores.round(4).tolist(),
        "class_ids": decoded.class_ids.tolist(),
    }


@pytest.fixture(scope="module")
def now() -> dict[str, list[dict[str, Any]]]:
    return results()


@pytest.fixture(scope="module")
def expected() -> dict[str, list[dict[str, Any]]]:
    return dict(json.loads(EXPECTED.read_text(encoding="utf-8")))


def test_boxes(now: dict[str, Any], expected: dict[str, Any]) -> None:
    compared = 0
    for name in [name for name in expected if not name.startswith("lane")]:
        for found, before in zip(now[name], expected[name], strict=True):
            assert found["class_ids"] == before["class_ids"], name
            np.testing.assert_allclose(found["boxes"], before["boxes"], rtol=0, atol=BOX_PX, err_msg=name)
            np.testing.assert_allclose(found["scores"], before["scores"], rtol=0, atol=SCORE, err_msg=name)
            compared += len(before["boxes"])
    assert compared > 40


def test_lane_lines(now: dict[str, Any], expected: dict[str, Any]) -> None:
    compared = 0
    for name in [name for name in expected if name.startswith("lane")]:
        for found, before in zip(now[name], expected[name], strict=True):
            assert [lane["number"] for lane in found["lanes"]] == [lane["number"] for lane in before["lanes"]], name
            for lane, former in zip(found["lanes"], before["lanes"], strict=True):
                np.testing.assert_allclose(lane["points"], former["points"], rtol=0, atol=LANE_PX, err_msg=name)
                assert lane["score"] == pytest.approx(former["score"], abs=SCORE), name
                compared += 1
            np.testing.assert_allclose(found["mask"], before["mask"], rtol=0.01, atol=20, err_msg=name)
    assert compared > 25
