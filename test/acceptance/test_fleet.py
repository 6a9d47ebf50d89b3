"""``multi-dnn fleet``: what a user gets from the command, its files and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
import yaml
from harness import installed

LIMIT_S = 240.0
pytestmark = pytest.mark.timeout(int(2 * LIMIT_S))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of two classes, green and red."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("val", 6)):
        for name, channel in (("green", 1), ("red", 2)):
            (root / part / name).mkdir(parents=True)
            for k in range(count):
                image = rng.integers(0, 90, (16, 16, 3), dtype=np.uint8)
                image[..., channel] += 100
                cv2.imwrite(str(root / part / name / f"{k}.png"), image)
    return root


def write_jobs(path: Path, images: Path, *jobs: dict[str, Any]) -> Path:
    common = {
        "model": "torchvision:squeezenet1_1", "weights": "random", "num_classes": 2, "size": "32x32",
        "data": f"classes:{images}", "global_batch": 20, "optimizer": "sgd", "lr": 0.001, "checkpoint_every_s": 0.2,
    }  # fmt: skip
    path.write_text(yaml.safe_dump({"period_s": 2, "jobs": [{**common, **job} for job in jobs]}))
    return path


class Command:
    """``multi-dnn fleet`` on two units of one thread, in a session of its own as from a terminal."""

    def __init__(self, jobs: Path, *options: str) -> None:
        self.log = jobs.with_suffix(".log")
        words = [*installed("multi-dnn"), "fleet", str(jobs), "--units", "2", "--threads", "1", *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                words, cwd=jobs.parent, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the command runs."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < end, self.text
            time.sleep(0.05)

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()

    def training_processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                if "JobWorker" in " ".join(process.cmdline()):
                    found.append(process)
        return found


@contextmanager
def fleet(jobs: Path, *options: str) -> Iterator[Command]:
    command = Command(jobs, *options)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
            command.process.wait()


def exit_code(jobs: Path, *options: str) -> tuple[int, str]:
    """The exit code of a whole run, and what it has printed."""
    with fleet(jobs, *options) as command:
        return command.process.wait(LIMIT_S), command.text


@pytest.mark.long
def test_a_killed_process_is_replaced_and_a_failing_job_is_reported(images: Path, tmp_path: Path) -> None:
    jobs = write_jobs(
        tmp_path / "jobs.yaml", images, {"name": "long", "steps": 80}, {"name": "short", "steps": 60},
        {"name": "bad", "steps": 10, "data": "classes:missing"},
    )  # fmt: skip
    checkpoints = [tmp_path / "jobs.fleet" / name / "checkpoint.pt" for name in ("long", "short")]
    with fleet(jobs, "--output", "out.json") as command:
        command.wait_until(lambda: all(path.exists() for path in checkpoints))
        command.training_processes()[0].send_signal(signal.SIGKILL)
        code, text = command.process.wait(LIMIT_S), command.text
    assert code == 1, text
    assert "a process has ended unexpectedly; it continues from its last checkpoint" in text
    (policy,) = json.loads((tmp_path / "out.json").read_text())["policies"].values()
    found = {name: (job["status"], job["done"]) for name, job in policy["jobs"].items()}
    assert found == {"long": ("finished", 80), "short": ("finished", 60), "bad": ("failed", 0)}
    assert "missing" in policy["jobs"]["bad"]["text"]
    assert "missing" in text
    for name in ("long", "short"):
        assert (tmp_path / "jobs.fleet" / name / f"{name}.safetensors").is_file()
        assert 0.0 <= policy["jobs"][name]["scores"]["top1"] <= 1.0
        assert policy["jobs"][name]["slow_down"] > 0.0
    assert cv2.imread(str(tmp_path / "out.png")) is not None


@pytest.mark.long
def test_an_interrupted_run_continues(images: Path, tmp_path: Path) -> None:
    jobs = write_jobs(
        tmp_path / "jobs.yaml", images, *({"name": name, "steps": 40, "checkpoint_every_s": 1e6} for name in "ab")
    )
    options = ("--folder", "runs", "--output", "out.json")
    with fleet(jobs, *options) as command:
        command.wait_until(lambda: "training:" in command.text)
        states = [tmp_path / "runs" / name / "state.json" for name in "ab"]
        command.wait_until(lambda: sum(json.loads(path.read_text())["done"] for path in states if path.exists()) >= 10)
        os.killpg(command.process.pid, signal.SIGINT)  # as Ctrl-C does
        code, text = command.process.wait(LIMIT_S), command.text
    assert code == 130, text
    assert "Traceback" not in text
    before = json.loads((tmp_path / "out.json").read_text())["policies"]["fair"]["jobs"]
    interrupted = {name: job["losses"] for name, job in before.items() if job["losses"]}
    assert interrupted
    code, text = exit_code(jobs, *options)
    assert code == 0, text
    after = json.loads((tmp_path / "out.json").read_text())["policies"]["fair"]["jobs"]
    for name, losses in interrupted.items():  # the same ones: these steps were not repeated
        assert after[name]["losses"][: len(losses)] == losses
        assert len(after[name]["losses"]) == 40
        assert (after[name]["elapsed_s"] > before[name]["elapsed_s"]) == (len(losses) < 40)
