"""Argument types that several verbs share; each raises argparse's error, which names the option and the value."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable


def natural(text: str) -> int:
    """A whole number from 0."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def positive_float(text: str) -> float:
    """A finite number above 0."""
    return _number(text, lambda value: 0.0 < value < 1e9, "above 0")


def not_negative(text: str) -> float:
    """A finite number from 0."""
    return _number(text, lambda value: 0.0 <= value < 1e6, "from 0")


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, lambda value: 0.0 <= value <= 1.0, "from 0 to 1")


def positive_share(text: str) -> float:
    """A number above 0, up to 1."""
    return _number(text, lambda value: 0.0 < value <= 1.0, "above 0, up to 1")


def size(text: str) -> tuple[int, int]:
    """A picture size such as 640x480: (width, height), 1 to 16384 each."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    if not match or not all(1 <= int(side) <= 16384 for side in match.groups()):
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 640x480 (each side 1 to 16384)")
    return int(match[1]), int(match[2])


def camera_name(text: str) -> str:
    """A camera's name as the node's parameters allow it."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a camera name (lower-case letters, digits and _, letter first)"
        )
    return text


def _number(text: str, allowed: Callable[[float], bool], which: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number {which}")
    return value
