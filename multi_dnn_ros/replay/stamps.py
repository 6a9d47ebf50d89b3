"""Recording times as messages hold them."""

from __future__ import annotations

from builtin_interfaces.msg import Time


def nearest_time(nanoseconds: int) -> Time:
    """The nearest that a message can hold: where a record is damaged, its time may be as well."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return Time(sec=max(-(2**31), min(seconds, 2**31 - 1)), nanosec=rest)
