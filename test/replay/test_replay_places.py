"""The output of ``multi-dnn replay`` does not depend on file locations or the user."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from fork_server import ForkServer
from road_bag import scenes, write_road

from multi_dnn_ros.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def replay(fork_server: ForkServer, folder: Path, home: Path, *arguments: str) -> None:
    """Run the command in a process with the environment of another user."""
    done = fork_server.run(
        [sys.executable, "-m", "multi_dnn_ros.cli.main", "replay", *arguments],
        timeout=200,
        cwd=folder,
        env={**os.environ, "HOME": str(home), "USER": home.name, "HOSTNAME": home.name, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stderr  # the recording is damaged on purpose: the output describes the damage


def files(output: Path) -> dict[str, bytes]:
    """Contents by path relative to the output."""
    return {str(file.relative_to(output)): file.read_bytes() for file in output.rglob("*") if file.is_file()}


def test_two_outputs_are_equal_file_by_file(
    tmp_path: Path,
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = tmp_path / "recording"
    write_road(recording, scenes(3))
    (file,) = (file for file in recording.iterdir() if file.stem == "recording")
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 3 // 4])
    outputs = []
    for location, name in (("here", "results"), ("there/in a folder", "other name")):
        folder, home = tmp_path / location, tmp_path / "homes" / name
        folder.mkdir(parents=True)
        home.mkdir(parents=True)
        shutil.copytree(recording, folder / "drive")
        # Once by a relative, once by an absolute path.
        bag = "drive" if name == "results" else str(folder / "drive")
        (folder / "one.yaml").write_text(
            "/**:\n  ros__parameters:\n    dnns: [object]\n    dnn: {object: {backend: eager, jobs: 1}}\n"
        )
        arguments = (bag, name, "--with-input", "--params-file", "one.yaml", "--device", "cpu")
        if location == "here":
            replay(fork_server, folder, home, *arguments)
        else:  # once in this process
            monkeypatch.chdir(folder)
            assert main(["replay", *arguments]) == 1, capsys.readouterr().err
        outputs.append(files(folder / name))
        shutil.rmtree(folder / "drive")
    one, two = outputs
    assert one.keys() == two.keys() >= {"metadata.yaml", "summary.json"}
    assert [name for name in one if one[name] != two[name]] == []
    assert not any(str(tmp_path).encode() in content for content in one.values())
