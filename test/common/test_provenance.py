"""Results record the command that produced them, in a form that can be run again."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from multi_dnn_ros.common.reporting import provenance


@pytest.mark.parametrize(
    ("module", "program"),
    [
        (None, "multi-dnn"),
        ("multi_dnn_ros.cli.main", "multi-dnn"),
        ("pytest.__main__", "multi-dnn"),
        ("multi_dnn_ros.compression.__main__", "python -m multi_dnn_ros.compression"),
    ],
)
def test_the_command(module: str | None, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["whatever", "measure", "two words"])
    assert provenance()["command"] == f"{program} measure 'two words'"
    monkeypatch.setattr(sys, "argv", ["whatever"])
    assert provenance()["command"] == program
