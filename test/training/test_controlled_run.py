"""``python -m multi_dnn_ros.training controlled``: stopped, killed and continued, it computes the same networks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import killed_training
import pytest
from fork_server import ForkServer

from multi_dnn_ros.common.file_lock import lock_file
from multi_dnn_ros.models.sources import load_artifact
from multi_dnn_ros.training import controlled_run
from multi_dnn_ros.training.__main__ import main
from multi_dnn_ros.training.controlled_run import EXIT_STOPPED

pytestmark = pytest.mark.usefixtures("one_thread", "narrow")


def command(colours: Path, folder: Path, seeds: int, *more: str) -> list[str]:
    return ["controlled", "torchvision:squeezenet1_1", "--data", f"classes:{colours}", "--num-classes", "2",
            "--size", "32", "--macs-size", "64", "--epochs", "2", "--retrain-epochs", "2", "--batch-size", "8",
            "--ratio", "0.4", "--seeds", str(seeds), "--folder", str(folder), "--out", str(folder / "out.json"),
            "--device", "cpu", *more]  # fmt: skip


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_stopped_or_killed_run_continues_where_it_ended(
    seeds: int, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fork_server: ForkServer
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    codes = []
    while not codes or (codes[-1] == EXIT_STOPPED and len(codes) < 30):
        codes.append(main(command(colours, whole, seeds, "--minutes", "1e-9")))
    # Stopped after each epoch but the last of a network, and after each further training: 1 + 4 * seeds.
    assert codes == [EXIT_STOPPED] * (1 + 4 * seeds) + [0]
    shown = capsys.readouterr().out
    assert "stopped after epoch 1 of 2; repeat the command to continue" in shown
    content = json.loads((whole / "out.json").read_text())
    assert list(content["runs"]) == [
        f"{variant} {seed}" for seed in range(seeds) for variant in ("decomposed", "control")
    ]
    assert content["settings"]["retraining"]["epochs"] == 2
    assert 0.1 < content["cost"]["macs_cut"] < 0.9
    after = {variant: [content["runs"][f"{variant} {seed}"]["after"]["top1"] for seed in range(seeds)]
             for variant in ("decomposed", "control")}  # fmt: skip
    for variant, values in after.items():
        assert content["summary"][variant]["mean"] == pytest.approx(sum(values) / seeds)
    difference = (sum(after["decomposed"]) - sum(after["control"])) / seeds
    assert content["summary"]["against_control"] == pytest.approx(difference)
    assert f"{difference:+.4f}" in shown.splitlines()[-1]
    assert not list(whole.glob("*seed*.ckpt"))

    # Start from the same files, because the signs of a decomposition differ from run to run.
    killed.mkdir()
    for name in ("original.safetensors", "decomposed.safetensors"):
        shutil.copy(whole / name, killed / name)
    (killed / "out.json").write_text(json.dumps({**content, "runs": {}}))
    again = command(colours, killed, seeds)
    stopped = fork_server.run(killed_training.command("control.seed0.ckpt", "narrow_main", again), timeout=200)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    assert list(json.loads((killed / "out.json").read_text())["runs"]) == ["decomposed 0"]
    capsys.readouterr()
    assert main(["controlled-table", str(whole / "out.json"), str(killed / "out.json")]) == 0
    table = capsys.readouterr().out
    assert table.count("squeezenet1_1") == 1
    assert f"{killed / 'out.json'}: unfinished; further trainings that are finished: 1" in table
    assert main(again) == 0
    resumed = json.loads((killed / "out.json").read_text())
    for key, row in content["runs"].items():
        assert {**resumed["runs"][key], "seconds": 0, "sha256": ""} == {**row, "seconds": 0, "sha256": ""}
        name = f"{key.replace(' ', '.seed')}.safetensors"
        weights = [load_artifact(folder / name)[0].state_dict() for folder in (whole, killed)]
        assert all(bool((weights[0][part] == weights[1][part]).all()) for part in weights[0])

    # The manifest names files with these scores.
    networks = json.loads((whole / "networks" / "networks.json").read_text())
    entry = networks["squeezenet1_1"]
    assert entry == content["networks"]["squeezenet1_1"]
    for role, variant in (("original", "control"), ("decomposed", "decomposed")):
        file = whole / "networks" / entry[role]["file"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == entry[role]["sha256"]
        assert entry[role]["scores"] == content["runs"][f"{variant} {entry[role]['seed']}"]["after"]
        assert bool(load_artifact(file)[1].plan) == (role == "decomposed")

    capsys.readouterr()
    assert main(["controlled-table", str(whole / "out.json"), str(killed / "out.json")]) == 0
    assert capsys.readouterr().out.count("squeezenet1_1") == 2
    assert main(command(colours, whole, seeds, "--ratio", "0.5")) == 1
    assert "was written with other ratio" in capsys.readouterr().err


def test_a_finished_training_outlives_a_full_disk(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoint is removed only after its result is written."""
    write = controlled_run.write_json

    def full(path: Path, content: Mapping[str, Any]) -> None:
        if content.get("runs"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    monkeypatch.setattr(controlled_run, "write_json", full)
    assert main(command(colours, tmp_path, 1)) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert (tmp_path / "decomposed.seed0.ckpt").exists()


def test_several_processes_share_the_trainings(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them is represented by its lock."""
    assert main(command(colours, tmp_path, 1, "--minutes", "1e-9")) == EXIT_STOPPED
    assert main(command(colours, tmp_path, 1, "--minutes", "1e-9")) == EXIT_STOPPED
    assert (tmp_path / "original.safetensors").exists()
    with lock_file(tmp_path / "decomposed.seed0.lock", "taken", ""):
        capsys.readouterr()
        assert main(command(colours, tmp_path, 1)) == 0
        assert "decomposed 0: trained by other processes; the last one to end" in capsys.readouterr().out
        content = json.loads((tmp_path / "out.json").read_text())
        assert list(content["runs"]) == ["control 0"]
        assert "summary" not in content
    assert main(command(colours, tmp_path, 1)) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert list(content["runs"]) == ["decomposed 0", "control 0"]
    assert content["summary"]["control"]["seeds"] == 1


def test_two_processes_that_start_together_finish_together(
    colours: Path, tmp_path: Path, fork_server: ForkServer
) -> None:
    """The original exists; one of them decomposes it, and the other one waits for that."""
    while not (tmp_path / "original.safetensors").exists():
        assert main(command(colours, tmp_path, 1, "--minutes", "1e-9")) == EXIT_STOPPED
    (tmp_path / "decomposed.safetensors").unlink(missing_ok=True)
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import narrow_main; " \
        f"sys.exit(narrow_main.main({command(colours, tmp_path, 1)!r}))"  # fmt: skip
    started = [fork_server.popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(timeout=200.0) for process in started] == [0, 0]
    content = json.loads((tmp_path / "out.json").read_text())
    assert list(content["runs"]) == ["decomposed 0", "control 0"]
    assert content["summary"]["control"]["seeds"] == 1
    # Another process changes nothing.
    before = (tmp_path / "out.json").read_bytes()
    assert main(command(colours, tmp_path, 1)) == 0
    assert (tmp_path / "out.json").read_bytes() == before


def test_only_one_process_trains_the_original(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_file(tmp_path / "original.lock", "taken", ""):
        assert main(command(colours, tmp_path, 1)) != 0
    assert "original.safetensors is being trained by another process" in capsys.readouterr().err
    assert not (tmp_path / "original.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("out.json", "[]", "holds list, not an object; expected what `controlled` writes"),
        ("out.json", "{}", "no result of `controlled`; it lacks runs, settings"),
        ("out.json", "", "not JSON"),
        ("networks/networks.json", "", "not JSON"),
        ("networks/networks.json", "[]", "holds list, not an object; expected what `controlled` writes"),
    ],
)
def test_a_damaged_file_is_named_before_the_training(
    name: str, content: str, message: str, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    assert main(command(colours, tmp_path, 1)) == 1
    assert f"{file}: {message}" in capsys.readouterr().err
    assert not (tmp_path / "original.safetensors").exists()
