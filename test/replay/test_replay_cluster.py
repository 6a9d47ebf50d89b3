"""``multi-dnn replay --cluster``: which recordings are found, what became of each, what is replayed again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet import units
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.storage_files import BagMessage

FRAMES = 4
TOPIC = "/front/image_raw"


class _RayError(Exception):
    pass


class _Done:
    def __init__(self, result: Any) -> None:
        self.result = result


class InstantRay:
    """A cluster of one host that runs each task when it is submitted. lost: name of the results whose process dies."""

    exceptions = SimpleNamespace(RayError=_RayError)

    def __init__(self, lost: str = "") -> None:
        self.replayed: list[str] = []
        self._lost = lost

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}]

    def remote(self, **needs: float) -> Callable[[Any], Any]:
        return lambda function: SimpleNamespace(remote=lambda *arguments: self._run(function, *arguments))

    def _run(self, function: Callable[..., Any], recording: str, output: str, options: list[str]) -> Any:
        existed = Path(output).exists()
        result = None if Path(output).name == self._lost else function(recording, output, options)
        if not existed:
            self.replayed.append(Path(output).name)
        return _Done(result)

    def wait(self, waiting: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, done: Any) -> Any:
        if done.result is None:
            raise _RayError("The worker died unexpectedly.")
        return done.result


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good recordings, one of them in a folder, a damaged and an unreadable one, and a file of a Mac."""
    folder = tmp_path_factory.mktemp("drives")
    noise = np.random.default_rng(0).integers(0, 256, (FRAMES, 480, 640, 3), dtype=np.uint8)  # more than one chunk
    for name in ("monday", "week/tuesday"):
        with BagWriter(folder / name) as writer:
            writer.add_topic(TOPIC, "sensor_msgs/msg/Image")
            for index, each in enumerate(noise):
                writer.write(TOPIC, index, serialize_message(image_message(each, Header())))
    (whole,) = (folder / "monday").glob("*.mcap")
    (folder / "cut.mcap").write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])
    (folder / "noise.mcap").write_bytes(b"no recording at all")
    (folder / "._noise.mcap").write_bytes(b"Mac OS X")
    return folder


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("parameters") / "one.yaml"
    path.write_text("/**:\n  ros__parameters: {dnns: [object], dnn: {object: {backend: eager, jobs: 1}}}\n")
    return ["--params-file", str(path), "--device", "cpu"]


def read_bag(path: Path) -> list[BagMessage]:
    with BagReader(path) as bag:
        return list(bag.messages())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[[InstantRay], InstantRay]:
    def use(ray: InstantRay) -> InstantRay:
        monkeypatch.setattr(units, "connected", lambda address: contextlib.nullcontext(ray))
        return ray

    return use


def test_every_recording_is_replayed_and_one_that_fails_does_not_stop_the_others(
    drives: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: Any
) -> None:
    out = tmp_path / "out"
    command = ["replay", str(drives), str(out), "--cluster", *options]
    cluster(InstantRay(lost="tuesday"))
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "4 recordings: 1 done, 1 damaged, 2 failed" in printed.out
    assert "noise: failed: multi-dnn replay: error:" in printed.err
    assert "week/tuesday: failed: The worker died unexpectedly." in printed.err
    entries = json.loads((out / "manifest.json").read_text())["recordings"]
    assert {name: entry["status"] for name, entry in entries.items()} == {
        "monday": "done", "week/tuesday": "failed", "cut": "damaged", "noise": "failed"
    }  # fmt: skip
    assert "mcap recover" in entries["cut"]["message"]

    # The second time, only the failed recordings are replayed, and not the results, which may be among them.
    ray = cluster(InstantRay())
    assert main(command) == 1
    assert ray.replayed == ["noise", "tuesday"]
    assert "4 recordings: 2 done, 1 damaged, 1 failed" in capsys.readouterr().out
    assert read_bag(out / "monday") == read_bag(out / "week" / "tuesday")
    assert main(["replay", str(drives / "monday"), str(tmp_path / "alone"), *options]) == 0
    assert read_bag(tmp_path / "alone") == read_bag(out / "monday")
    assert main([*command, "--with-input"]) == 2
    assert "belongs to replays with options" in capsys.readouterr().err


def test_wrong_folders_and_needs_are_named(
    drives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: Any
) -> None:
    cluster(InstantRay())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for source, out, more, code, text in (
        (drives, "out", ["--gpus", "99"], 1, "no host of the cluster has the CPU core and the 99 GPUs for one replay"),
        (drives, "mine", [], 2, "already exists and has no manifest.json"),
        (tmp_path / "mine", "out", [], 2, "holds no recording"),
        (drives, "out", ["--overlay", "o.mp4"], 2, "--overlay is for one recording"),
    ):
        assert main(["replay", str(source), str(tmp_path / out), "--cluster", *more]) == code
        assert text in capsys.readouterr().err
    assert main(["replay", str(drives), str(tmp_path / "out"), "--gpus", "2"]) == 2
    assert "--gpus needs --cluster" in capsys.readouterr().err
