"""Cameras on a real ROS 2 with both middlewares."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import measure_cameras
import pytest
from measure_cameras import Case

from multi_dnn_ros.settings.schema import BEST_EFFORT_DEPTH, RELIABLE_DEPTH

ROOT = Path(__file__).resolve().parents[2]
MIDDLEWARES = ("rmw_cyclonedds_cpp", "rmw_fastrtps_cpp")


@pytest.fixture(autouse=True)
def _own_domain(domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from multi_dnn_ros.common.processes import loopback_environment

    for name, value in loopback_environment(domain).items():
        monkeypatch.setenv(name, value)
    for name in measure_cameras.CONFIGURED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "tests", ["test_camera_topics.py", "test_detection_bytes.py", "test_ground_points.py", "test_layouts.py"]
)
@pytest.mark.parametrize("middleware", MIDDLEWARES)
def test_camera_topics_as_on_the_standalone_runtime(middleware: str, tests: str) -> None:
    """The same tests: QoS that follows the publishers, missing publishers, losses, boxes, points in metres, layouts."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:launch_testing", "-p", "no:launch_ros", "-p",
         "no:cacheprovider", str(ROOT / "test" / "ros" / tests)],
        env={**os.environ, "RMW_IMPLEMENTATION": middleware}, cwd=ROOT, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
@pytest.mark.parametrize("middleware", MIDDLEWARES)
def test_every_image_of_a_plain_camera_arrives(middleware: str, reliability: str) -> None:
    """Images that fit the receive buffers of every kernel; measure_cameras.py measures larger ones."""
    row = measure_cameras.run(Case(middleware, reliability, "320x240", 10.0), 6.0)
    depth = RELIABLE_DEPTH if reliability == "reliable" else BEST_EFFORT_DEPTH
    assert row["qos"] == f"{reliability.replace('_', ' ')}, depth {depth}"
    assert row["received"] == row["sent"] == 60
    assert row["stated_lost"] in ("0", "unknown")
    assert row["warned_after_s"] is None
    assert "config/" in row["middleware"]  # a file of ours
