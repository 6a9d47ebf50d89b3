"""Tests with the marker `ros` need the `ros2` commands and this package, built by colcon and sourced."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ros_system import RosSystem

from multi_dnn_ros.demo.children import loopback_environment


@functools.cache
def _missing() -> str:
    """Why tests with the marker cannot run here; empty when they can."""
    if shutil.which("ros2") is None:
        return "needs a sourced ROS 2: no command `ros2`"
    found = subprocess.run(["ros2", "pkg", "prefix", "multi_dnn_ros"], capture_output=True, timeout=60, check=False)
    return "" if found.returncode == 0 else "needs this package built by colcon and its setup.bash sourced"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("ros") is not None and _missing():
        pytest.skip(_missing())


@pytest.fixture
def ros(domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RosSystem]:
    for name, value in loopback_environment(domain).items():
        monkeypatch.setenv(name, value)
    with RosSystem(tmp_path) as system:
        yield system
