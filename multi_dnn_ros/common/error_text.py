"""Short text of an exception, for use in another message."""

from __future__ import annotations


def summarize_error(error: BaseException) -> str:
    """First line of the exception's message, or its type name if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
