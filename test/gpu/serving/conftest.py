"""The node and its surroundings, as the tests of the node have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import multi_dnn_ros.ros  # noqa: F401  (makes rclpy importable)

if TYPE_CHECKING:
    from node_bench import Bench


@pytest.fixture
def bench(domain: int) -> Iterator[Bench]:
    from node_bench import Bench

    made = Bench(domain)
    yield made
    made.close()
