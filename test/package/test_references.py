"""Modules and names that docstrings refer to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "multi_dnn_ros"
REFERENCE = re.compile(r":(?:mod|class|func|meth|data|attr|exc):`~?([\w.\s]+?)(?:\(\))?`")


def leads_somewhere(reference: str) -> bool:
    """Whether `package.module` exists, and its source contains the first of the names that follow."""
    parts = reference.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if source.exists():
            names = parts[count:]
            return not names or re.search(rf"\b{names[0]}\b", source.read_text(encoding="utf-8")) is not None
    return False


def references(source: Path) -> set[str]:
    """Absolute names of this package that the source refers to."""
    folder = ".".join(source.relative_to(ROOT).parts[:-1])
    found = (re.sub(r"\s", "", name) for name in REFERENCE.findall(source.read_text(encoding="utf-8")))
    absolute = {folder + name if name.startswith(".") else name for name in found}
    return {name for name in absolute if name.startswith(f"{PACKAGE.name}.")}


def test_references_lead_somewhere() -> None:
    wrong = [
        f"{source.relative_to(ROOT)}: {name}"
        for source in sorted(PACKAGE.rglob("*.py"))
        for name in sorted(references(source))
        if not leads_somewhere(name)
    ]
    assert wrong == []


def test_references_are_found() -> None:
    assert "multi_dnn_ros.ros.node_status" in references(PACKAGE / "ros" / "diagnostics.py")


@pytest.mark.parametrize("name", ["multi_dnn_ros.serving.no_such_module", "multi_dnn_ros.engine.task.NoSuchName"])
def test_a_reference_that_leads_nowhere_is_recognized(name: str) -> None:
    assert not leads_somewhere(name)
