"""Fake units, known to every test of this folder."""

from __future__ import annotations

import pytest
from partition_fakes import KIND

from multi_dnn_ros.planning import batch_units

batch_units.register(KIND)


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None) -> None:
    """Unit processes are forks of one that has imported PyTorch."""
