"""Makes rclpy and the message packages importable before the test modules ask for them."""

import pytest

import multi_dnn_ros.ros  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None, forked_children: None) -> None:
    """Processes that benchmarks spawn, and nodes and cameras that they start, are forks; on a GPU, new interpreters."""
