"""Processes are started as forks."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_children: None) -> None:
    """Nodes and cameras are forks; test/acceptance starts nodes as a user does."""
