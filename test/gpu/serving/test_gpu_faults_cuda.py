"""A GPU fault in one DNN: the others go on within half a second, and the guilty one alone ends up disabled."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import faulty_dnns
import numpy as np
import psutil
import pytest
import torch
from node_bench import image
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection2DArray

DNNS = ("lane", "object", "pedestrian")
GUILTY = "object"
RATE_HZ = 30.0
LIMIT_S = 180.0
ERROR = 2  # as in diagnostic_msgs


class Drive:
    """A node on the GPU, a camera of 30 Hz, and when each DNN answered."""

    def __init__(self, bench: Any, folder: Path, standby: str, fault_window_s: float) -> None:
        os.environ[faulty_dnns.FOLDER] = str(folder)
        self.folder = folder
        self.bench = bench
        self.answers: dict[str, list[float]] = {dnn: [] for dnn in DNNS}
        parameters = {
            "dnns": list(DNNS), "isolation": "process", "standby": standby, "device": "cuda:0",
            "fault_window_s": fault_window_s,
        }  # fmt: skip
        begin = time.monotonic()
        self.node = bench.node(parameters, build=faulty_dnns.build)
        assert bench.change("configure")
        self.configured_s = time.monotonic() - begin
        assert bench.change("activate")
        self.camera = bench.camera()
        for dnn in DNNS:
            kind, topic = (PointCloud2, "points") if dnn == "lane" else (Detection2DArray, "detections")
            bench.peer.create_subscription(
                kind,
                f"/multi_dnn/front/{dnn}/{topic}",
                lambda _, dnn=dnn: self.answers[dnn].append(time.monotonic()),
                50,
            )
        picture: Image = image(90, 1, (640, 480))

        def send() -> None:
            picture.header.stamp = bench.peer.get_clock().now().to_msg()
            self.camera.publish(picture)

        bench.peer.create_timer(1.0 / RATE_HZ, send)

    def spin_until(self, condition: Any, what: str, limit_s: float = LIMIT_S) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, f"waited {limit_s:g} s for {what}: {self.status().message}"
            self.bench.executor.spin_once(timeout_sec=0.01)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.spin_until(lambda: time.monotonic() > end, "time to pass", seconds + 5.0)

    def status(self, name: str = "engine cuda:0") -> Any:
        return self.bench.status(name)

    def all_answer(self, dnns: tuple[str, ...] = DNNS) -> None:
        now = time.monotonic()
        self.spin_until(lambda: all(self.answers[d] and self.answers[d][-1] > now for d in dnns), f"answers of {dnns}")

    def standby_ready(self) -> bool:
        return "ready" in self.status().by_key.get("standby", "")

    def fault(self, kind: str) -> float:
        """Order a fault; when it was met."""
        order = self.folder / GUILTY
        order.write_text(kind)
        self.spin_until(lambda: not order.exists(), "the fault")
        return time.monotonic()

    def longest_gap_s(self, dnn: str, since_s: float) -> float:
        """Between two answers, from the last one before `since_s` on."""
        times = np.array(self.answers[dnn])
        first = max(int(np.searchsorted(times, since_s)) - 1, 0)
        return float(np.diff(times[first:]).max())


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder


def written(name: str, **figures: Any) -> None:
    """For results/: beside the test's log."""
    line = json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "test": name, **figures})
    print("RESULT", line)
    if "OUT" in os.environ:
        with Path(os.environ["OUT"], "gpu_faults.jsonl").open("a") as file:
            file.write(line + "\n")


def test_with_a_hot_standby_the_others_go_on_at_once_and_the_guilty_one_is_disabled(bench: Any, faults: Path) -> None:
    drive = Drive(bench, faults, "hot", fault_window_s=600.0)
    drive.all_answer()
    gaps: dict[str, dict[str, float]] = {}
    for number, kind in enumerate(("assert", "illegal address"), start=1):
        drive.spin_until(drive.standby_ready, "the standby")
        drive.spin(1.0)
        at_s = drive.fault(kind)
        drive.spin(2.0)
        drive.all_answer()
        gaps[f"{number}: {kind}"] = {dnn: drive.longest_gap_s(dnn, at_s) for dnn in DNNS}
    # Twice within the window: each DNN gets a process of its own, and one that loses that twice is disabled. A fault
    # that comes while the standby still serves all of them counts for none.
    own = f"engine cuda:0 {GUILTY}"
    drive.spin_until(lambda: drive.status(own).level >= 0, "a process for the guilty DNN alone")
    for _ in range(5):
        drive.all_answer()
        drive.spin(2.0)
        at_s = drive.fault("assert")
        drive.spin(3.0)
        if "disabled" in drive.status(own).message:
            break
    assert "disabled" in drive.status(own).message
    others = tuple(dnn for dnn in DNNS if dnn != GUILTY)
    drive.all_answer(others)
    gaps["3: assert, in its own process"] = {dnn: drive.longest_gap_s(dnn, at_s) for dnn in others}
    for dnn in others:
        assert drive.status(f"{dnn} on front").level < ERROR
    assert "disabled" in drive.status(f"{GUILTY} on front").message
    written("hot", configured_s=drive.configured_s, longest_gap_s=gaps)
    for fault, of in gaps.items():
        for dnn in others:
            assert of[dnn] < 0.5, f"{fault}: {dnn} was silent for {of[dnn]:.2f} s"
    statistics = {dnn: drive.status(f"{dnn} on front").by_key for dnn in DNNS}
    for dnn, values in statistics.items():
        dropped = sum(int(value) for key, value in values.items() if key.startswith("dropped: "))
        assert int(values["offered"]) == int(values["published"]) + dropped + int(values["pending"]), dnn
    assert engine_processes()
    assert bench.change("deactivate")
    assert bench.change("cleanup")
    assert not engine_processes()


def engine_processes() -> set[int]:
    """Processes that this one started and that still run."""
    return {child.pid for child in psutil.Process().children(recursive=True)}
