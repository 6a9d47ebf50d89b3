"""`multi-dnn build`: makes what the node reads, says what it made, and names what is of another machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.machine_cache import Key, MachineCache

CONFIG = """\
/multi_dnn:
  ros__parameters:
    cameras: [front]
    dnns: [lane]
    device: cpu
    dnn:
      lane: {model: "builtin:lane_small", backend: measured}
"""


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "multi_dnn_ros.cli.main", "build", *arguments]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_caches_are_made_once_and_those_of_another_machine_are_named(tmp_path: Path) -> None:
    config, output = tmp_path / "robot.yaml", tmp_path / "build.json"
    config.write_text(CONFIG)
    other = MachineCache("backends", "the measured backends", tmp_path / "multi_dnn_ros" / "backends")
    other.write(Key("0" * 64, {"device": "cpu"}, {"cpu": "Board 9000"}), [])
    first = build(tmp_path, str(config), "--output", str(output))
    assert first.returncode == 0, first.stderr
    assert "measuring 3 backends for lane" in first.stdout
    assert "configuring again, from the caches" in first.stdout
    assert first.stdout.count("measuring 3 backends") == 1  # the second time it is read
    assert "Not used, of another machine or version:" in first.stdout
    assert "cpu is 'Board 9000' there and" in first.stdout
    figures = json.loads(output.read_text())
    made = {each["what"]: each for each in figures["caches"]}
    backends = made["measured backends"]
    assert (backends["files"], Path(backends["where"])) == (2, other.folder)
    assert 0 < backends["bytes"] <= backends["total_bytes"]
    assert [line.partition(":")[0] for line in backends["not_used"]] == [
        str(entry.folder) for entry in other.entries("0" * 64)
    ]
    assert figures["first_s"] > 0 < figures["again_s"]
    assert list(figures["dnns"]) == ["lane"]
    again = build(tmp_path, str(config), "--output", str(output))
    assert again.returncode == 0, again.stderr
    assert "measuring" not in again.stdout
    files = {each["what"]: each["files"] for each in json.loads(output.read_text())["caches"]}
    assert files["measured backends"] == 0


@pytest.mark.parametrize(
    ("text", "arguments", "code", "expected"),
    [
        (None, (), 1, "nowhere.yaml"),
        ("/multi_dnn: {ros__parameters: {device: abacus}}", (), 1, "abacus"),
        (CONFIG.replace("measured", "rocket"), (), 1, "rocket"),
        (CONFIG.replace("backend: measured", "providers: [directml]"), (), 1, "providers"),
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


def test_a_dnn_that_cannot_be_configured_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "robot.yaml"
    config.write_text(CONFIG.replace("builtin:lane_small", "missing.onnx"))
    done = build(tmp_path, str(config))
    assert done.returncode == 1
    assert "multi-dnn build: error: " in done.stderr
    assert "missing.onnx" in done.stderr
