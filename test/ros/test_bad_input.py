"""Bad input of every kind: the node names it, counts it, and processes the good frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from node_bench import POISON, Bench, image
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.serving.build import build as build_for_real
from multi_dnn_ros.serving.host import Host

OUT = "/multi_dnn/front/object/detections"
ERROR, STALE = 2, 3
BAD: dict[str, Callable[[Any], None]] = {
    "unknown encoding": lambda m: setattr(m, "encoding", "rgb9"),
    "no width": lambda m: setattr(m, "width", 0),
    "no height": lambda m: setattr(m, "height", 0),
    "absurd width": lambda m: setattr(m, "width", 4_294_967_295),
    "absurd both": lambda m: (setattr(m, "width", 4_294_967_295), setattr(m, "height", 4_294_967_295)),
    "step too small": lambda m: setattr(m, "step", 1),
    "step too large": lambda m: setattr(m, "step", m.step + 1),
    "data too short": lambda m: setattr(m, "data", m.data[:-1]),
    "data too long": lambda m: setattr(m, "data", bytes(m.data) + b"x"),
    "no data": lambda m: setattr(m, "data", b""),
}


def start(bench: Bench, parameters: dict | None = None) -> None:
    bench.node(parameters)
    assert bench.change("configure")
    assert bench.change("activate")


def served_after(bench: Bench, heard: list, camera: Any, good: Any) -> None:
    before = len(heard)
    camera.publish(good)
    bench.until(lambda: len(heard) == before + 1, "the whole frame after it")


def count_of(bench: Bench, status: str, key: str) -> int:
    return int(bench.status(status).by_key.get(key, 0))


def test_outputs_that_are_not_finite_are_counted_and_logged(bench: Bench) -> None:
    start(bench, {"dnns": ["object", "dizzy"], "dnn.dizzy.role": "object", "dnn.dizzy.model": "x.onnx"})
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    served_after(bench, heard, camera, image(POISON, 1))
    bench.until(lambda: count_of(bench, "dizzy on front", "dropped: bad_output") == 1, "the count")
    assert bench.status("object on front").level == 0
    served_after(bench, heard, camera, image(200, 2))
    bench.until(lambda: count_of(bench, "dizzy on front", "published") == 1, "the DNN that was dizzy")


def refused(bench: Bench, parameters: dict, *words: str, build: Any = build_for_real) -> None:
    """Configuring fails with these words in the diagnostics, and the node stays up."""
    bench.node(parameters, build=build)
    assert not bench.change("configure")
    bench.until(lambda: bench.status("node").level == ERROR, "the error in the diagnostics")
    for word in words:
        assert word in bench.status("node").message
    assert bench.state() == "unconfigured"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named(bench: Bench) -> None:
    refused(bench, {"device": "cuda:1"}, "device", "cuda:1", "0 GPUs", "cpu")


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
@pytest.mark.parametrize("content", [None, b"", b"garbage" * 100])
def test_missing_or_damaged_model(bench: Bench, tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    refused(bench, {"dnn.object.model": str(path), "dnn.object.decoder": "yolo", "dnn.object.labels": ["a"]}, str(path))


def test_weights_of_another_network_are_named(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"\xff" * 64)
    model = "torchvision:ssdlite320_mobilenet_v3_large"
    refused(bench, {"dnn.object.model": model, "dnn.object.weights": str(path)}, str(path))


def problems_of(bench: Bench) -> list[str]:
    """The lines of the node's status after configuring has failed."""
    assert not bench.change("configure")
    bench.until(lambda: bench.status("node").level == ERROR, "the error in the diagnostics")
    return bench.status("node").message.splitlines()


def assert_each_once(lines: list[str], *texts: str) -> None:
    for words in texts:
        assert sum(words in line for line in lines) == 1, (words, lines)
    assert len(lines) == len(texts)


def test_all_wrong_values_names_and_topics_are_reported_together_before_the_engine_is_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "configure", lambda *arguments: pytest.fail("the engine was loaded"))
    bench.node(
        {
            "workers": 99, "polciy": "edf", "camera.front.topic": "two words", "dnns": ["object", "lane"],
            "dnn.object.jobs": 0,
        }
    )  # fmt: skip
    assert_each_once(
        problems_of(bench), "workers is 99", "polciy: no such parameter", "front.topic is 'two words'",
        "object.jobs is 0",
    )  # fmt: skip


def test_all_wrong_files_and_combinations_are_reported_together(bench: Bench, tmp_path: Path) -> None:
    bench.node(
        {
            "dnns": ["object", "lane"], "dnn.object.model": str(tmp_path / "missing.onnx"), "dnn.lane.keep": ["cat"],
            "device": "cpu",
        },
        build=build_for_real,
    )  # fmt: skip
    lines = problems_of(bench)
    assert any("missing.onnx': there is no such file" in line for line in lines), lines
    assert any("lane.keep = ['cat']: no class 'cat'" in line for line in lines), lines
