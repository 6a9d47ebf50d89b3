"""Tests on a real ROS 2 with this package built by colcon; skipped without one.

Tests with a parameter `middleware` are skipped if that RMW implementation is not installed.

source /opt/ros/jazzy/setup.bash && source install/setup.bash
python3 -m pytest -p no:launch_testing -p no:launch_ros test/real_ros
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from multi_dnn_ros.common.processes import loopback_environment

if TYPE_CHECKING:
    from ros_system import RosSystem


def _missing() -> str:
    """Why these tests cannot run here; empty when they can."""
    if shutil.which("ros2") is None:
        return "needs a real ROS 2: no command `ros2`"
    try:
        found = subprocess.run(["ros2", "pkg", "prefix", "multi_dnn_ros"], capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "`ros2 pkg prefix` does not answer"
    return "" if found.returncode == 0 else "needs this package built by colcon and its setup.bash sourced"


MISSING = _missing()


@functools.cache
def _is_installed(package: str) -> bool:
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        get_package_prefix(package)
    except PackageNotFoundError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if MISSING:
            item.add_marker(pytest.mark.skip(reason=MISSING))
            continue
        middleware = item.callspec.params.get("middleware") if hasattr(item, "callspec") else None
        if middleware is not None and not _is_installed(middleware):
            item.add_marker(pytest.mark.skip(reason=f"needs {middleware}"))


@pytest.fixture
def ros(domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RosSystem]:
    from ros_system import RosSystem

    for name, value in loopback_environment(domain).items():
        monkeypatch.setenv(name, value)
    with RosSystem(tmp_path) as system:
        yield system
