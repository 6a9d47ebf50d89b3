"""Sort key for names that contain numbers."""

from __future__ import annotations

import re


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sort key: image_2 comes before image_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
