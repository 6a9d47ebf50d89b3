"""Types of arguments that several commands share. Each raises ArgumentTypeError, to which argparse adds the option."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from functools import partial

from multi_dnn_ros.settings.forms import SIZE_FORM, parse_size


def size(text: str) -> tuple[int, int]:
    """An image size such as 640x480: (width, height), 1 to 16384 pixels each."""
    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not {SIZE_FORM}") from None


def camera_name(text: str) -> str:
    """A camera's name as the node's parameters allow it."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a camera name (lower-case letters, digits and _; the first is a letter; at most 64)"
        )
    return text


def topic_name(text: str) -> str:
    """A topic name: absolute, relative or private."""
    if not re.fullmatch(r"(~/|/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a topic name (parts of letters, digits and _, none of which begins with a digit, "
            "separated by /)"
        )
    return text


def _integer(text: str, *, minimum: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer of at least {minimum} and at most 18 digits")
    return int(text)


def _number(text: str, *, allowed: Callable[[float], bool], requirement: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number {requirement}")
    return value


natural = partial(_integer, minimum=0)
positive = partial(_integer, minimum=1)
positive_float = partial(_number, allowed=lambda value: 0.0 < value < 1e9, requirement="above 0 and below 1e9")
not_negative = partial(_number, allowed=lambda value: 0.0 <= value < 1e6, requirement="of at least 0 and below 1e6")
fraction = partial(_number, allowed=lambda value: 0.0 <= value <= 1.0, requirement="from 0 to 1")
positive_fraction = partial(_number, allowed=lambda value: 0.0 < value <= 1.0, requirement="above 0 and up to 1")
minutes = partial(_number, allowed=lambda value: 0.1 <= value < 1e6, requirement="of at least 0.1 and below 1e6")
#: Long enough that each of the three parts of a soak test has results.
soak_minutes = partial(_number, allowed=lambda value: 0.25 <= value < 1e6, requirement="of at least 0.25 and below 1e6")
