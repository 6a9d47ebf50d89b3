"""Fixtures of the tests of models."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_comparisons: None) -> None:
    """ONNX Runtime computes in forks of a process that has imported NumPy and PyTorch."""
