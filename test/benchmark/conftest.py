"""Makes rclpy and the message packages importable before the test modules ask for them."""

import pytest

import multi_dnn_ros.ros  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None) -> None:
    """Processes that benchmarks spawn are forks; on a GPU, new interpreters."""
