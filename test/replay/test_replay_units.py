"""``multi-dnn replay --units`` and ``evaluate --units``: the results of an engine, computed in batches by CPU units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_fakes import parsed, read_bag
from road_bag import CORRUPT, scenes, write_road

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, DropReason, Result
from multi_dnn_ros.replay.batch_runner import BatchedDnn, BatchRunner

FRAMES = 10
UNITS = "cpu:1,cpu:1/torchscript"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, forked_spawns: None) -> Path:
    """Tables of builtin:object on two units."""
    folder = tmp_path_factory.mktemp("tables")
    command = ["partition", "profile", "builtin:object", "--units", UNITS, "--tables", str(folder)]
    assert main([*command, "--max-batch", "2", "--samples", "1", "--limit", "1"]) == 0
    return folder


def parameters_of_one(path: Path, **more: str) -> str:
    """A parameter file for builtin:object with these further parameters."""
    settings = {"backend": "eager", "jobs": 1, **more}
    path.write_text(json.dumps({"/**": {"ros__parameters": {"dnns": ["object"], "dnn": {"object": settings}}}}))
    return str(path)


@pytest.fixture(scope="module")
def one_dnn(tmp_path_factory: pytest.TempPathFactory) -> str:
    return parameters_of_one(tmp_path_factory.mktemp("parameters") / "one.yaml")


# The tests below are quicker: they run units' batches through `evaluate`, and batches with frames that fail.
@pytest.mark.long
@pytest.mark.parametrize("tiles", ["1x1", "2x1"])
def test_results_are_those_of_an_engine(tiles: str, tables: Path, tmp_path: Path) -> None:
    one_dnn = parameters_of_one(tmp_path / "one.yaml", tiles=tiles)
    recording = str(write_road(tmp_path / "drive", scenes(FRAMES)))
    assert main(["replay", recording, str(tmp_path / "one"), "--params-file", one_dnn, "--device", "cpu"]) == 0
    several = ["--units", UNITS, "--tables", str(tables), "--batch", "2"]
    assert main(["replay", recording, str(tmp_path / "several"), "--params-file", one_dnn, *several]) == 0
    batched, expected = (read_bag(tmp_path / name) for name in ("several", "one"))
    assert [(message.topic, message.stamp_ns) for message in batched] == [
        (message.topic, message.stamp_ns) for message in expected
    ]
    found = 0
    for message, other in zip(batched[1:], expected[1:], strict=True):
        boxes, expected_boxes = parsed(message).detections, parsed(other).detections
        assert [box.results[0].hypothesis.class_id for box in boxes] == [
            box.results[0].hypothesis.class_id for box in expected_boxes
        ]
        for box, reference in zip(boxes, expected_boxes, strict=True):
            assert box.bbox.size_x == pytest.approx(reference.bbox.size_x, abs=0.1)
            assert box.results[0].hypothesis.score == pytest.approx(reference.results[0].hypothesis.score, abs=1e-3)
        found += len(boxes)
    assert found > FRAMES
    (stream,) = json.loads((tmp_path / "several" / "summary.json").read_text())["streams"]
    assert (stream["offered"], stream["published"], stream["dropped"]) == (FRAMES, FRAMES - 1, {"bad_image": 1})
    assert CORRUPT < FRAMES


def test_evaluate_scores_the_network_on_the_units_and_a_batch_beyond_their_tables_is_refused(
    tables: Path, one_dnn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One test: making the tables takes seconds, and each of pytest's workers would do it."""
    data = ["--data", f"road:{tmp_path / 'road'}", "--scenes", "8", "--limit", "6", "--device", "cpu"]
    units = ["--units", UNITS, "--tables", str(tables), "--batch-size", "2"]
    assert main(["evaluate", "builtin:object", *data, *units, "--report", str(tmp_path / "out")]) == 0
    assert "images/s" in capsys.readouterr().out
    (content,) = (json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json"))
    plain, several = content["networks"]
    assert several["served"]["backend"] == "cpu:1+cpu:1/torchscript"
    assert several["served"]["images_per_s"] > 0
    (score,), (alone,) = several["scores"].values(), plain["scores"].values()
    assert score["images"] == alone["images"] == 6
    assert score["map50"] == pytest.approx(alone["map50"], abs=0.01)
    recording, out = str(write_road(tmp_path / "drive", scenes(1))), tmp_path / "replayed"
    beyond = ["--units", UNITS, "--batch", "400", "--tables", str(tables)]
    assert main(["replay", recording, str(out), "--params-file", one_dnn, *beyond]) in (1, 2)
    assert "400" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--units", "gpu7"], "unit 'gpu7'"),
        (["--batch", "4"], "--batch needs --units"),
        (["--units", "cpu:1", "--device", "cpu"], "--device is for an engine"),
        (["--units", "cpu:1", "--live"], "--units does not use a running node"),
        (["--units", "cpu:1"], "there is no table of builtin:"),
    ],
)
def test_bad_options_name_what_is_wrong(
    options: list[str], said: str, one_dnn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(write_road(tmp_path / "drive", scenes(1)))
    given = list(options)
    if "--batch" not in given and "--live" not in given:
        given += ["--tables", str(tmp_path / "none")]
    try:
        code = main(["replay", recording, str(tmp_path / "out"), "--params-file", one_dnn, *given])
    except SystemExit as ended:
        code = ended.code
    assert code in (1, 2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_frame_ends_once_also_when_some_cannot_be_preprocessed_or_decoded() -> None:
    ends: list[Result | Drop] = []

    def preprocess(image: Any) -> Any:
        if int(image[0, 0, 0]) == 3:
            raise ValueError("no such image")
        return (image.float().mean().reshape(1, 1, 1, 1).expand(1, 3, 1, 1),)

    def decode(outputs: Any, size: tuple[int, int]) -> float:
        if float(outputs[0]) == 5.0:
            raise ValueError("NaN")
        return float(outputs[0])

    dnn = BatchedDnn("one", ("front",), preprocess, decode, lambda images: [images[:, 0, 0, 0]])
    runner = BatchRunner([dnn], 4)
    runner.start(ends.append)
    for value in range(10):
        assert runner.submit(Frame("front", value, np.full((4, 6, 3), value, np.uint8)), 1.0)
    assert len(ends) == 8  # two full batches
    runner.finish()
    assert sorted(end.frame.stamp_ns for end in ends) == list(range(10))
    for end in ends:
        if isinstance(end, Result):
            assert end.output == end.frame.stamp_ns
        else:
            assert end.reason == {3: DropReason.DNN_ERROR, 5: DropReason.BAD_OUTPUT}[end.frame.stamp_ns]
    assert sum(isinstance(end, Drop) for end in ends) == 2


def test_the_tiles_of_a_frame_are_decoded_together() -> None:
    ends: list[Result | Drop] = []
    batches: list[int] = []

    def preprocess(image: Any) -> Any:
        return ((image[0, 0, 0].float() + torch.arange(3) / 10).reshape(3, 1, 1, 1),)

    def compute(images: Any) -> list[Any]:
        batches.append(len(images))
        return [images[:, 0, 0, 0]]

    def decode(outputs: Any, size: tuple[int, int]) -> list[float]:
        return [round(value, 3) for value in outputs[0].tolist()]

    runner = BatchRunner([BatchedDnn("one", ("front",), preprocess, decode, compute, tiles=3)], 8)
    runner.start(ends.append)
    for value in range(5):
        assert runner.submit(Frame("front", value, np.full((4, 6, 3), value, np.uint8)), 1.0)
    runner.finish()
    results = [end.output for end in ends if isinstance(end, Result)]
    assert results == [[value, value + 0.1, value + 0.2] for value in range(5)]
    assert batches == [6, 6, 3]  # at most 8 inputs, whole frames


def test_a_batch_that_does_not_hold_the_tiles_of_a_frame_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(write_road(tmp_path / "drive", scenes(1)))
    tiled = parameters_of_one(tmp_path / "tiled.yaml", tiles="2x2")
    command = ["replay", recording, str(tmp_path / "out"), "--params-file", tiled, "--units", "cpu:1", "--batch", "3"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "--batch is 3; a frame has 4 inputs with dnn.object.tiles 2x2: expected at least 4" in error
    assert not (tmp_path / "out").exists()
