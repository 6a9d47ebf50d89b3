"""Image sizes in options and files, such as 640x480."""

from __future__ import annotations

import re

#: What is allowed, in words.
SIZE_FORM = "a size such as 640x480 (1 to 16384 pixels each)"
_LARGEST = 16384


def parse_size(text: str) -> tuple[int, int]:
    """(width, height) in pixels from `text`, WIDTHxHEIGHT. Raises ValueError, which says what is allowed."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    if not match or not all(1 <= int(side) <= _LARGEST for side in match.groups()):
        raise ValueError(f"expected {SIZE_FORM}")
    return int(match[1]), int(match[2])
