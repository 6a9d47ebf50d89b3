"""Values of ROS 2 parameters in YAML, by the rules of rcl's parser.

PyYAML follows YAML 1.1, where `1e5` is a string, `1_0` and `1:30` are ints, and `2024-01-01` is a date. rcl reads a
plain scalar as a bool if it is a word such as `yes` or `off`, as an int if C's strtoll accepts all of it, as a float if
strtod does or it is `.inf` or `.nan`, otherwise as a string, `null` included.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from typing import Final

_INT64: Final = range(-(2**63), 2**63)
_TRUE: Final = frozenset(("Y", "y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE: Final = frozenset(("N", "n", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
#: Longer decimal numbers do not fit int64; Python refuses to convert those of more than 4300 digits.
_INTEGER: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]{0,18})")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_HEX_FLOAT: Final = re.compile(r"[-+]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"(?P<sign>[-+]?)(?:\.(?:inf|Inf|INF)|(?i:inf|infinity|(?P<nan>nan)))")
_DOTTED_NAN: Final = frozenset((".nan", ".NaN", ".NAN"))


def plain_value(text: str) -> bool | int | float | str:
    """The value of a scalar without quotes and without a tag. text: not empty, because rcl rejects that."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        integer = _integer(text)
        if integer in _INT64:
            return integer
    number = _float(text)
    return text if number is None else number


def list_problem(values: Iterable[object]) -> str:
    """What is wrong with a list of scalars; empty if nothing is. A ROS list cannot even mix ints and floats."""
    kinds = sorted({"string" if isinstance(value, str) else type(value).__name__ for value in values})
    if len(kinds) <= 1:
        return ""
    return f"all elements of a list must have one type (bool, int, float or string); found: {', '.join(kinds)}"


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    return int(digits, base) * (-1 if text[0] == "-" else 1)


def _float(text: str) -> float | None:
    """The value that rcl reads as a float: `.inf`, `.nan`, or what C's strtod accepts except `nan(...)`.

    None if it is not accepted or out of range.
    """
    special = _SPECIAL.fullmatch(text)
    if text in _DOTTED_NAN or (special and special["nan"]):
        return math.nan
    if special:
        return -math.inf if special["sign"] == "-" else math.inf
    try:
        if _FLOAT.fullmatch(text):
            number = float(text)
        elif _HEX_FLOAT.fullmatch(text):
            number = float.fromhex(text)
        else:
            return None
    except OverflowError:
        return None
    # strtod reports overflow and underflow. It accepts subnormal numbers without loss of precision, such as 0x1p-1074;
    # here no subnormal number is accepted.
    too_small = abs(number) < sys.float_info.min and any(digit in "123456789abcdef" for digit in _mantissa(text))
    return None if math.isinf(number) or too_small else number


def _mantissa(text: str) -> str:
    lower = text.lower()
    return lower.partition("x")[2].partition("p")[0] if "x" in lower else lower.partition("e")[0]
