"""The progress bar of scenarios that run for a given time."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} s, {remaining} left{postfix}"


class _TimeBar(tqdm):
    @property
    def format_dict(self) -> dict[str, Any]:
        """Values of the text. tqdm would forget the total if more time has passed, which the format does not allow."""
        values = dict(super().format_dict)
        return {**values, "n": min(values["n"], values["total"])}


def time_bar(seconds: float, what: str) -> tqdm[Any]:
    """A bar of `seconds`, on stderr if that is a terminal. Its `update` takes the seconds since the last call."""
    return _TimeBar(total=seconds, desc=what, bar_format=_FORMAT, disable=None)
