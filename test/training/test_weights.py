"""The shipped weights reach the scores in docs/measured.md, loaded and decoded as in the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.models.networks import build
from multi_dnn_ros.training.__main__ import main
from multi_dnn_ros.training.data import SEEDS
from multi_dnn_ros.training.datasets import road_frames
from multi_dnn_ros.training.evaluate import Evaluator, builtin_dnns
from multi_dnn_ros.training.scenes import SceneGenerator

ROAD = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "road"


SCENES = 40
#: Enough to detect weights that do not fit their network or their decoder; SCENES are enough to check the scores.
FEW_SCENES = 6


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(builtin_dnns())


@pytest.fixture(scope="module")
def small() -> Evaluator:
    return Evaluator(builtin_dnns("_small"))


@pytest.fixture(scope="module")
def scores(evaluator: Evaluator) -> dict[str, Any]:
    return scored(evaluator, SCENES)


def scored(evaluator: Evaluator, count: int) -> dict[str, Any]:
    generator = SceneGenerator(640, 480, SEEDS["test"])
    scenes = [generator.scene(index) for index in range(count)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return evaluator.scenes(scenes, count, "unseen scenes")
    finally:
        torch.set_num_threads(before)


def test_decomposed_dnns_have_fewer_operations(evaluator: Evaluator, small: Evaluator) -> None:
    for role, dnn in small.dnns.items():
        macs = [cost(each.module, each.example_inputs()).macs for each in (evaluator.dnns[role], dnn)]
        assert macs[1] <= 0.6 * macs[0], role


@pytest.mark.parametrize("which", ["evaluator", "small"])
def test_a_few_unseen_scenes(which: str, request: pytest.FixtureRequest) -> None:
    found = scored(request.getfixturevalue(which), FEW_SCENES)
    assert found["object"]["map50"] >= 0.75
    assert found["pedestrian"]["map50"] >= 0.70
    assert found["lane"]["f1"] >= 0.90


@pytest.mark.long  # fewer scenes above
def test_unseen_scenes(scores: dict[str, Any]) -> None:
    assert scores["object"]["map50"] >= 0.85
    assert scores["pedestrian"]["map50"] >= 0.80
    assert scores["lane"]["f1"] >= 0.93


@pytest.mark.long  # fewer scenes above
def test_decomposed_dnns_score_as_well(small: Evaluator, scores: dict[str, Any]) -> None:
    found = scored(small, SCENES)
    for role, score in (("lane", "f1"), ("object", "map50"), ("pedestrian", "map50")):
        # 0.02 is promised on many scenes; so few add an uncertainty of about 0.02: the pedestrian networks differ by
        # 0.032 here, but by 0.014 on the 666 scenes of results/decomposed_scores.json.
        assert found[role][score] >= scores[role][score] - 0.04, role


@pytest.mark.long  # generated roads above
@pytest.mark.skipif(not ROAD.exists(), reason="needs ../shared/data/road")
@pytest.mark.parametrize(("part", "f1"), [("video", 0.9), ("photos", 0.8), ("other_photos", 0.75)])
def test_real_road(evaluator: Evaluator, part: str, f1: float) -> None:
    assert evaluator.road(road_frames(ROAD, part))["f1"] >= f1


def test_another_lane_network_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {name: tmp_path / f"{name}.safetensors" for name in ("blind", "other")}
    network = build("LaneNet", {})
    save_file({name: torch.zeros_like(value) for name, value in network.state_dict().items()}, names["blind"])
    save_file({"weight": torch.zeros(3)}, names["other"])
    command = [
        "evaluate",
        "--count",
        "2",
        "--drive",
        "1",
        "--seed",
        "4",
        "--out",
        str(tmp_path / "scores.json"),
        "--lane",
    ]
    assert main([*command, str(names["blind"])]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["unseen_scenes"]["lane"]["recall"] == 0.0
    assert scores["unseen_scenes"]["object"]["map50"] > 0.0
    for name in (str(names["other"]), str(tmp_path / "missing.safetensors")):
        assert main([*command, name]) == 1
        assert name in capsys.readouterr().err
