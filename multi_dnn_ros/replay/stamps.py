"""Recording times as message times."""

from __future__ import annotations

from builtin_interfaces.msg import Time


def nearest_time(nanoseconds: int) -> Time:
    """The nearest time that a message can represent, because damaged records may have times out of range."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return Time(sec=max(-(2**31), min(seconds, 2**31 - 1)), nanosec=rest)
