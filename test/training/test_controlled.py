"""``multi-dnn retrain --seeds --control --report``: mean and spread, compared with an equally trained original."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.models.sources import load_network

pytestmark = pytest.mark.usefixtures("one_thread")


def classifier(path: Path, width: int) -> Path:
    """An exported network for one image of 16x16 at a time, with two classes."""
    torch.manual_seed(width)
    network = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2)
    ).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def command(model: Path, output: Path, data: Path, *more: str) -> list[str]:
    return ["retrain", str(model), "--output", str(output), "--data", f"classes:{data}", "--device", "cpu", "--quiet",
            "--decoder", "classification", "--batch-size", "8", "--lr", "0.01", *more]  # fmt: skip


def digest(path: Path) -> str:
    return weights_digest(load_network(str(path)).module.state_dict())


def test_seeds_and_control(colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, original = classifier(tmp_path / "small.pt2", 2), classifier(tmp_path / "original.pt2", 8)
    out, report = tmp_path / "out.pt2", tmp_path / "report"
    more = ["--epochs", "3", "--seed", "5", "--seeds", "3", "--control", str(original), "--report", str(report)]
    checkpoint = ["--checkpoint", str(tmp_path / "run.ckpt")]
    assert main(command(small, out, colours, *more, *checkpoint)) == 0
    shown = capsys.readouterr().out
    content = json.loads((report / "retrain.json").read_text())
    assert [row["seed"] for row in content["seeds"]] == [row["seed"] for row in content["control"]] == [5, 6, 7]
    assert content["seed"] in (5, 6, 7)
    assert len(content["images_per_s"]) == 3
    assert min(content["images_per_s"]) > 0
    values = [row["after"]["top1"] for row in content["seeds"]]
    controls = [row["after"]["top1"] for row in content["control"]]
    for text in (
        "after, 3 seeds",
        "control after",
        f"{sum(values) / 3:.4f}",
        f"{sum(values) / 3 - sum(controls) / 3:+.4f}",
    ):
        assert text in shown
    assert (report / "retrain.png").read_bytes()[:4] == b"\x89PNG"
    assert content["images"] == {f"classes:{colours}": {"train": 24, "choice": 8, "test": 12}}
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {
        f"run.{infix}seed{seed}.ckpt" for infix in ("", "control.") for seed in (5, 6, 7)
    }
    # The written weights are those of the seed in the report: training with this seed alone yields the same.
    alone = tmp_path / "alone.pt2"
    assert main(command(small, alone, colours, "--epochs", "3", "--seed", str(content["seed"]))) == 0
    assert digest(out) == digest(alone)
    description = load_network(str(out)).description
    assert description is not None
    assert description.provenance["training"]["control"] == content["control"]


def test_a_control_of_another_task_is_one_line(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = classifier(tmp_path / "small.pt2", 2)
    torch.export.save(
        torch.export.export(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), (torch.zeros(1, 3, 8, 8),)),
        tmp_path / "other.pt2",
    )
    given = command(small, tmp_path / "out.pt2", colours, "--control", str(tmp_path / "other.pt2"))
    assert main(given) == 2
    assert "other.pt2 is for classes at 8x8" in capsys.readouterr().err.splitlines()[-1]


def test_too_many_faulty_images_are_one_line(tmp_path: Path, colours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    data = tmp_path / "data"
    shutil.copytree(colours, data)
    (data / "train" / "red" / "0.png").write_bytes(b"")
    given = command(classifier(tmp_path / "small.pt2", 2), tmp_path / "out.pt2", data, "--epochs", "1")
    assert main(given) == 1
    assert "1 unusable: " in capsys.readouterr().err.splitlines()[-1]
    assert main([*given, "--max-faulty", "0.1"]) == 0


def two_processes(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m",
         "multi_dnn_ros.cli.main", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip


@pytest.mark.long
def test_two_processes_that_are_killed_end_with_the_same_weights(colours: Path, tmp_path: Path) -> None:
    model = classifier(tmp_path / "in.pt2", 4)
    more = ["--epochs", "30", "--batch-size", "7"]  # each process gets three or four images of a batch
    whole = two_processes(command(model, tmp_path / "whole.pt2", colours, *more))
    assert whole.wait(120) == 0, whole.stderr and whole.stderr.read()
    checkpoint = tmp_path / "run.ckpt"
    arguments = command(model, tmp_path / "resumed.pt2", colours, *more, "--checkpoint", str(checkpoint))
    killed = two_processes(arguments)
    limit = time.monotonic() + 120
    while not checkpoint.exists() and killed.poll() is None and time.monotonic() < limit:
        time.sleep(0.002)
    processes = [psutil.Process(killed.pid), *psutil.Process(killed.pid).children(recursive=True)]
    assert len(processes) > 2
    for process in processes:
        process.kill()
    killed.wait(60)
    assert checkpoint.exists()
    assert not (tmp_path / "resumed.pt2").exists()
    resumed = two_processes(arguments)
    assert resumed.wait(120) == 0, resumed.stderr and resumed.stderr.read()
    assert digest(tmp_path / "whole.pt2") == digest(tmp_path / "resumed.pt2")
