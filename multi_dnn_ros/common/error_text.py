"""What an error says, as part of another message."""

from __future__ import annotations


def summarize_error(error: BaseException) -> str:
    """The first line of its message, or its name where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
