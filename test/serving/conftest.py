"""Fixtures that the tests of engine processes share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _separate_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def _forked_engine_processes(forked_engines: None) -> None:
    """Engine processes are forks of one that has imported PyTorch."""
