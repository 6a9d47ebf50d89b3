"""Fixtures that the tests of engine processes share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from multi_dnn_ros.serving import engine_process


@pytest.fixture(autouse=True)
def _separate_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def _forked_engine_processes(forked_engines: None) -> None:
    """Engine processes are forks of one that has imported PyTorch."""


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine processes are new interpreters, as on a robot, for tests of what happens during their imports."""
    monkeypatch.setattr(engine_process, "subprocess", subprocess)
