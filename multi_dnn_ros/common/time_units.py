"""Conversion between units of time."""

from __future__ import annotations


def ms_to_ns(ms: float) -> int:
    """Milliseconds to nanoseconds."""
    return round(ms * 1e6)
