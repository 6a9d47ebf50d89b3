"""Bad input of every kind: the node names it, counts it, and processes the good frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_bench import Bench

from multi_dnn_ros.serving.build import build as build_for_real
from multi_dnn_ros.serving.host import Host

ERROR, STALE = 2, 3


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


@pytest.mark.parametrize(("name", "content"), [("model.onnx", None), ("model.onnx", b""), ("model.pt2", b"x" * 700)])
def test_missing_or_damaged_model(bench: Bench, tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    refused(bench, {"dnn.object.model": str(path), "dnn.object.decoder": "yolo", "dnn.object.labels": ["a"]}, str(path))


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
