"""Syntax trees of the package, parsed once for all tests of a process: that takes seconds."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def source_trees() -> dict[Path, ast.Module]:
    """By file, in order. Raises SyntaxError for syntax that Python 3.10 does not have."""
    paths = sorted((ROOT / "multi_dnn_ros").rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10)) for path in paths}
