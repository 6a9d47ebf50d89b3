"""Reads JSON files that may come from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json_object(
    path: Path, expected: str, error: type[Exception] = ValueError, max_bytes: int = 64 << 20
) -> dict[str, Any]:
    """The object in a JSON file.

    expected: what the file should hold, and which command writes it, for messages. error: what is raised, with one line
    that names the file, if it cannot be read, is no JSON, holds no object or is larger than `max_bytes`.
    """
    try:
        is_too_large = path.stat().st_size > max_bytes
        content = None if is_too_large else json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror or problem}); expected {expected}") from None
    except (ValueError, RecursionError) as problem:  # ValueError itself: a number of more than 4300 digits
        raise error(f"{path}: not JSON, or truncated ({problem}); expected {expected}") from None
    if is_too_large:
        raise error(f"{path}: larger than {max_bytes >> 20} MiB; expected {expected}")
    if not isinstance(content, dict):
        raise error(f"{path}: holds {type(content).__name__}, not an object; expected {expected}")
    return content
