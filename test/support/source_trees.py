"""Syntax trees of the package, parsed once for all tests of a process: that takes seconds.

They stay until the end of the process and are excluded from garbage collection: parsing takes three times as long with
collections in between, and each later one would traverse millions of objects.
"""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def source_trees() -> dict[Path, ast.Module]:
    """By file, in order. Raises SyntaxError for syntax that Python 3.10 does not have."""
    paths = sorted((ROOT / "multi_dnn_ros").rglob("*.py"))
    gc.collect()
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10)) for path in paths}
    finally:
        gc.freeze()
        gc.enable()
