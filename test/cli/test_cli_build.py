"""`multi-dnn build` fills the caches that the node reads, and reports what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_exports import TinyMap, export

from multi_dnn_ros.cli.main import main

CONFIG = """\
/multi_dnn:
  ros__parameters:
    cameras: [front]
    dnns: [lane]
    device: cpu
    dnn:
      lane: {model: lane.onnx}
"""


@pytest.fixture(autouse=True)
def _separate_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_engines: None) -> None:
    """The engine processes, which are forks, get the environment and the folder of this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_the_dnns_are_configured_twice_and_the_caches_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, output = tmp_path / "robot.yaml", tmp_path / "build.json"
    config.write_text(CONFIG)
    export(TinyMap(), tmp_path / "lane.onnx")
    assert main(["build", str(config), "--output", str(output)]) == 0
    assert "configuring again, from the caches" in capsys.readouterr().out
    figures = json.loads(output.read_text())
    assert [Path(each["where"]).name for each in figures["caches"] if each["files"]] == ["onnx"]
    assert figures["first_s"] > 0 < figures["again_s"]
    assert figures["dnns"] == ["lane"]


@pytest.mark.parametrize(
    ("text", "arguments", "code", "expected"),
    [
        (None, (), 1, "nowhere.yaml"),
        ("/multi_dnn: {ros__parameters: {device: abacus}}", (), 1, "abacus"),
        (CONFIG.replace("lane.onnx", "lane.onnx, backend: rocket"), (), 1, "rocket"),
        (CONFIG.replace("lane.onnx", "lane.onnx, providers: [directml]"), (), 1, "providers"),
        (CONFIG, ("--node", "dnns"), 2, "--node is 'dnns'; expected a full name such as /multi_dnn"),
        (CONFIG, ("--output", "."), 2, "--output is ., which is a folder; expected a file"),
    ],
)
def test_bad_input_is_one_line(
    text: str | None,
    arguments: tuple[str, ...],
    code: int,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "nowhere.yaml"
    if text is not None:
        config.write_text(text)
    assert main(["build", str(config), *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("multi-dnn build: error: ")
    assert expected in error
    assert error.count("\n") == 1


def test_a_dnn_that_cannot_be_configured_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "robot.yaml"
    config.write_text(CONFIG.replace("lane.onnx", "missing.onnx"))
    assert main(["build", str(config)]) == 1
    error = capsys.readouterr().err
    assert "multi-dnn build: error: " in error
    assert "missing.onnx" in error
