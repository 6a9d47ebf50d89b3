"""The progress bar of scenarios that run for a given time."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} s, {remaining} left{postfix}"


def time_bar(seconds: float, what: str) -> tqdm[Any]:
    """A bar of `seconds`, on stderr if that is a terminal. Its `update` takes the seconds since the last call."""
    return tqdm(total=seconds, desc=what, bar_format=_FORMAT, disable=None)
