"""The shipped weights reach what the README promises, loaded and decoded as the node does it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from multi_dnn_ros.training.data import SEEDS
from multi_dnn_ros.training.datasets import road_frames
from multi_dnn_ros.training.evaluate import Judge, builtin_dnns
from multi_dnn_ros.training.scenes import SceneGenerator

ROAD = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "road"


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(builtin_dnns())


def test_unseen_scenes(judge: Judge) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = SceneGenerator(640, 480, SEEDS["test"])
    try:
        scores = judge.scenes(map(generator.scene, range(40)), 40, "unseen scenes")
    finally:
        torch.set_num_threads(before)
    assert scores["object"]["map50"] >= 0.85
    assert scores["pedestrian"]["map50"] >= 0.80
    assert scores["lane"]["f1"] >= 0.93


@pytest.mark.skipif(not ROAD.exists(), reason="needs ../shared/data/road")
@pytest.mark.parametrize(("part", "f1"), [("video", 0.9), ("photos", 0.8), ("apart", 0.75)])
def test_real_road(judge: Judge, part: str, f1: float) -> None:
    assert judge.road(road_frames(ROAD, part))["f1"] >= f1
