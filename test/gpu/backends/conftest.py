"""Prepared networks shared by the tests of the backends."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from gpu_stages import Prepared, prepare_residual


@pytest.fixture(scope="session")
def prepared() -> Callable[[str, str], Prepared]:
    """Prepared stages by backend and precision; every test uses its own inputs."""
    return functools.cache(prepare_residual)
