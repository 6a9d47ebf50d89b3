"""A node and its surroundings in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from node_bench import Bench, stranger_in


@pytest.fixture
def bench(domain: int) -> Iterator[Bench]:
    instance = Bench(domain)
    yield instance
    instance.close()


@pytest.fixture
def stranger(domain: int) -> Iterator[Any]:
    """A node of another participant."""
    with stranger_in(domain) as node:
        yield node
