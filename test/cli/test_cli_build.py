"""`multi-dnn build` fills the caches that the node reads; what it cannot do is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multi_dnn_ros.cli.main import main

CONFIG = """\
/multi_dnn:
  ros__parameters: {cameras: [front], dnns: [lane], device: cpu, dnn: {lane: {model: lane.onnx}}}
"""


@pytest.fixture(autouse=True)
def _separate_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_engines: None) -> None:
    """The engine processes, which are forks, get the environment and the folder of this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_the_summary_tells_how_long_the_node_will_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = tmp_path / "robot.yaml", tmp_path / "build.json"
    config.write_text(CONFIG.replace("lane.onnx", "'builtin:lane_small'"))
    assert main(["build", str(config), "--output", str(output)]) == 0
    figures = json.loads(output.read_text())
    assert figures["dnns"] == ["lane"]
    assert figures["first_s"] > 0 < figures["again_s"]
    assert f"from the caches in {tmp_path / 'cache'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "arguments", "code", "expected"),
    [
        (None, (), 1, "nowhere.yaml"),
        ("/multi_dnn: {ros__parameters: {device: abacus}}", (), 1, "abacus"),
        (CONFIG.replace("lane.onnx", "lane.onnx, backend: rocket"), (), 1, "rocket"),
        (CONFIG.replace("lane.onnx", "missing.onnx"), (), 1, "missing.onnx"),
        (CONFIG, ("--output", "."), 2, "--output is ., which is a folder; expected a file"),
    ],
)
def test_bad_input_is_one_line(
    text: str | None, arguments: tuple[str, ...], code: int, expected: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = tmp_path / "nowhere.yaml"
    if text is not None:
        config.write_text(text)
    assert main(["build", str(config), *arguments]) == code
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("multi-dnn build: error: ")
    assert expected in error
