"""Makes rclpy and the message packages importable before the test modules ask for them."""

import pytest

import multi_dnn_ros.ros  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_children: None) -> None:
    """Nodes and cameras are forks; test_process_life.py of test/ros starts nodes as a user does."""
