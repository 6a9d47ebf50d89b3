"""What the tests of engine processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig
from fake_pipelines import settings


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """Makes engine processes, and ends them."""
    rigs: list[Rig] = []

    def make(*dnns: str, **parameters: Any) -> Rig:
        rigs.append(Rig(settings(*dnns, **parameters)))
        return rigs[-1]

    yield make
    for one in rigs:
        one.close()
