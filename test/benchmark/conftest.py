"""Processes are started as forks."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None, forked_children: None) -> None:
    """Processes that benchmarks spawn, and nodes and cameras that they start, are forks; on a GPU, new interpreters."""
