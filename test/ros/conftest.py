"""Makes rclpy and the message packages importable before the test modules import them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import multi_dnn_ros.ros  # noqa: F401

if TYPE_CHECKING:
    from node_bench import Bench


@pytest.fixture
def bench(domain: int) -> Iterator[Bench]:
    from node_bench import Bench

    instance = Bench(domain)
    yield instance
    instance.close()
