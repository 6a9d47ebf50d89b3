"""`multi-dnn build` fills the caches that the node reads, reports what it wrote and names entries of other machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_exports import TinyMap, export

from multi_dnn_ros.cli.cache_build import build_caches
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.machine_cache import Key, MachineCache
from multi_dnn_ros.serving.host import EngineDescription, Progress
from multi_dnn_ros.settings.flat_parameters import to_config

CONFIG = """\
/multi_dnn:
  ros__parameters:
    cameras: [front]
    dnns: [lane]
    device: cpu
    dnn:
      lane: {model: lane.onnx, backend: measured}
"""


@pytest.fixture(autouse=True)
def _separate_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_engines: None) -> None:
    """The engine processes, which are forks, get the environment and the folder of this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_caches_are_filled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = tmp_path / "robot.yaml", tmp_path / "build.json"
    config.write_text(CONFIG)
    export(TinyMap(), tmp_path / "lane.onnx")
    other = MachineCache("backends", "the measured backends", tmp_path / "multi_dnn_ros" / "backends")
    other.write(Key("0" * 64, {"device": "cpu"}, {"cpu": "Board 9000"}), [])
    assert main(["build", str(config), "--output", str(output)]) == 0
    first = capsys.readouterr().out
    assert "measuring 3 backends for lane" in first
    assert "configuring again, from the caches" in first
    assert first.count("measuring 3 backends") == 1  # the second time the result is read
    figures = json.loads(output.read_text())
    made = {each["what"]: each for each in figures["caches"]}
    backends = made["measured backends"]
    assert (backends["files"], Path(backends["where"])) == (2, other.folder)
    assert 0 < backends["bytes"] <= backends["total_bytes"]
    assert figures["first_s"] > 0 < figures["again_s"]
    assert list(figures["dnns"]) == ["lane"]
    assert main(["build", str(config), "--output", str(output)]) == 0
    assert "measuring" not in capsys.readouterr().out
    files = {each["what"]: each["files"] for each in json.loads(output.read_text())["caches"]}
    assert files["measured backends"] == 0


def test_auto_is_measured_here_and_read_by_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "robot.yaml"
    config.write_text(CONFIG.replace(", backend: measured", ""))
    export(TinyMap(), tmp_path / "lane.onnx")
    assert main(["build", str(config)]) == 0
    assert capsys.readouterr().out.count("measuring 3 backends for lane") == 1
    assert main(["build", str(config)]) == 0
    again = capsys.readouterr().out
    assert "measuring" not in again
    assert f"from {tmp_path / 'multi_dnn_ros' / 'backends'}" in again


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


def test_a_dnn_that_cannot_be_configured_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "robot.yaml"
    config.write_text(CONFIG.replace("lane.onnx", "missing.onnx"))
    assert main(["build", str(config)]) == 1
    error = capsys.readouterr().err
    assert "multi-dnn build: error: " in error
    assert "missing.onnx" in error


class TwoDevices:
    """A host that also serves as the clock: lane runs on the GPU, people on the CPU, object on both.

    Writes the file that `merge_siblings` keeps.
    """

    def __init__(self, caches: Path) -> None:
        self._caches = caches
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def configure(self, config: Any, progress: Callable[[Progress], None]) -> EngineDescription:
        file = self._caches / "siblings" / "0.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        for seconds, step in [
            (0.5, Progress("choosing the devices", 0, 4)),
            (100.0, Progress("measuring on cpu", 0, 4)),
            (7.0, Progress("preparing lane", 0, 5, dnn="lane")),
            (2.0, Progress("lane ready", 1, 5, dnn="lane")),
            (1.0, Progress("preparing object", 1, 5, dnn="object")),
            (3.0, Progress("object ready", 2, 5, dnn="object")),
            (20.0, Progress("first runs", 2, 5)),
            (30.0, Progress("preparing object", 2, 5, dnn="object")),
            (4.0, Progress("object ready", 3, 5, dnn="object")),
            (0.0, Progress("preparing people", 3, 5, dnn="people")),
            (6.0, Progress("people ready", 4, 5, dnn="people")),
            (9.0, Progress("first runs", 4, 5)),
        ]:
            self._now_s += seconds
            progress(step)
        return EngineDescription("cuda:0, cpu", "", 1, {})

    def close(self) -> None: ...


def test_the_time_of_a_dnn_is_summed_over_its_devices(tmp_path: Path) -> None:
    flat = {"cameras": ["front"], "dnns": ["people", "object", "lane"]}
    models = {f"dnn.{name}.{field}": name for name in flat["dnns"] for field in ("role", "model")}
    host: Any = TwoDevices(tmp_path / "multi_dnn_ros")
    built = build_caches(to_config({**flat, **models}), lambda: host, print, host)
    assert built.by_dnn_s == {"people": (6.0, 6.0), "object": (8.0, 8.0), "lane": (2.0, 2.0)}
    assert built.first_s == built.again_s == 182.5
    made = {each.kind.path.name: each.files for each in built.caches}
    assert made["siblings"] == 1
