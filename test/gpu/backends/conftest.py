"""Networks that several tests of the backends share, each made ready once."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from gpu_stages import Prepared, prepare_residual


@pytest.fixture(scope="session")
def prepared() -> Callable[[str, str], Prepared]:
    """By backend and precision. Whoever runs the stages runs them on inputs of their own."""
    return functools.cache(prepare_residual)
