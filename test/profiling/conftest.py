"""Fixtures of the profiling tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def few_trees():
    """Enough for laws as simple as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multi_dnn_ros.profiling.learn._TREES", 40)
        yield
