"""Fixtures for the standalone runtime: every test has its own ROS domain; skipped if a real rclpy is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def _installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    # In a run of all tests, another package may have installed our runtime before, which is not a real ROS 2.
    return spec is not None and spec.origin != "multi_dnn_ros.standalone"


# Skip with a real ROS 2, and where Cyclone DDS has no wheel (aarch64, where the real ROS 2 is used).
if _installed("rclpy") or not _installed("cyclonedds") or not _installed("rosbags"):
    collect_ignore_glob = ["test_*.py"]
else:
    from multi_dnn_ros import standalone

    standalone.install()

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_domain(domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
    for name in ("CYCLONEDDS_URI", "ROS_AUTOMATIC_DISCOVERY_RANGE", "RCUTILS_CONSOLE_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ros() -> Iterator[Any]:
    """`rclpy`, initialized without arguments and shut down after the test."""
    import rclpy

    rclpy.init(args=[])
    yield rclpy
    rclpy.try_shutdown()


@pytest.fixture
def spin_until(ros: Any) -> Callable[..., None]:
    """`spin_until(node, condition, timeout=60)`: run a node's callbacks until the condition holds."""

    def spin(node: Any, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "the condition did not become true in time"
            ros.spin_once(node, timeout_sec=0.05)

    return spin


@pytest.fixture
def start_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start_process(source, *args)`: run Python source in another process; killed after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(source: str, *args: str) -> subprocess.Popen[str]:
        prelude = "from multi_dnn_ros import standalone\nstandalone.install()\n"
        process = subprocess.Popen(
            [sys.executable, "-c", prelude + source, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()
