"""Fake units, known to every test of this folder by the entry point in fake_units-1.0.dist-info."""

from __future__ import annotations

import pytest

from multi_dnn_ros.common import extensions

# pytest has just added this folder to sys.path; tests of other folders may have looked for entry points before.
extensions._found.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None) -> None:
    """Unit processes are forks of one that has imported PyTorch."""
