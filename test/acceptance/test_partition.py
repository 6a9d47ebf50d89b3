"""``multi-dnn partition`` as a user sees it: the command, its files and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command import multi_dnn
from harness import installed

UNITS = "cpu:1,cpu"


class Means(torch.nn.Module):
    """(N, 3, 8, 8) -> (N, 3): the mean of each channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


def partition(*arguments: object, code: int = 0) -> str:
    """What ``multi-dnn partition`` prints to stderr."""
    done = multi_dnn("partition", *map(str, arguments), timeout_s=280)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, net.pt2, and its tables on two units, which take 1 ms and 2 ms per image by them."""
    folder = tmp_path_factory.mktemp("partition")
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(Means(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, folder / "net.pt2")
    options = ("--units", UNITS, "--tables", folder / "tables", "--repeats", 2)
    partition("profile", folder / "net.pt2", *options, "--max-batch", 6)
    for path in tables_of(folder):
        content = json.loads(path.read_text())
        assert [row["batch"] for row in content["rows"]] == [1, 2, 3, 4, 5, 6]
        for row in content["rows"]:
            row["total_ms"] = row["batch"] * (1.0 if content["unit"] == "cpu:1" else 2.0)
        path.write_text(json.dumps(content))
    return folder


def tables_of(folder: Path) -> list[Path]:
    found = sorted((folder / "tables").rglob("*.json"))
    assert len(found) == 2
    return found


def test_a_batch_is_divided_by_the_tables(folder: Path, tmp_path: Path) -> None:
    for search in ("exact", "greedy"):
        options = ("--tables", folder / "tables", "--search", search, "--report", tmp_path / "plan.json")
        partition("plan", folder / "net.pt2", *options, "--batch", 6)
        report = json.loads((tmp_path / "plan.json").read_text())
        images, unit_ms = {"cpu:1": 4, "cpu": 2}, {"cpu:1": 4, "cpu": 4}
        assert report["plan"] == {"images": images, "unit_ms": unit_ms, "predicted_ms": 4}
        assert [each["predicted_ms"] for each in report["subsets"]] == [6, 12, 4]


def test_a_run_writes_all_outputs_in_order_and_times_of_every_subset(folder: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((6, 3, 8, 8), np.float32)
    np.save(tmp_path / "in.npy", images)
    files = ("--input", tmp_path / "in.npy", "--output", tmp_path / "out.npz", "--report", tmp_path / "run.json")
    options = ("--tables", folder / "tables", "--repeats", 2, "--compare")
    partition("run", folder / "net.pt2", *options, *files)
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output_0"], images.mean((2, 3)), rtol=1e-4)
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["run"]["images"] == {"cpu:1": 4, "cpu": 2}
    assert len(report["subsets"]) == 3
    assert all(each["measured_ms"] > 0 for each in report["subsets"])


def test_a_killed_unit_ends_the_run_with_one_line_and_no_files(folder: Path, tmp_path: Path) -> None:
    options = ("--tables", folder / "tables", "--repeats", 10**9, "--batch", 6, "--output", tmp_path / "out.npz")
    words = [*installed("multi-dnn"), "partition", "run", *map(str, (folder / "net.pt2", *options))]
    run = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    units: list[int] = []
    while len(units) < 2 and run.poll() is None:
        time.sleep(0.05)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        units = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(units[0], signal.SIGKILL)
    error = run.communicate(timeout=120)[1].splitlines()
    assert run.returncode == 1
    assert [line for line in error if not line.startswith("warning: ")] == error[-1:]
    assert "the process of unit cpu:1 was killed by SIGKILL" in error[-1]
    assert not list(tmp_path.iterdir())
    assert not any(Path(f"/proc/{pid}").exists() for pid in units)
