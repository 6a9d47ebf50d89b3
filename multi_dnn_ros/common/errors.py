"""Errors that several packages raise, and their text."""

from __future__ import annotations

from collections.abc import Iterator


class UsageError(Exception):
    """Contradictory or missing arguments; the message says which. Exit code 2."""


class CommandError(Exception):
    """The command failed; the message says why in one line. Exit code 1."""


class FrameError(ValueError):
    """The image of a frame cannot be used; the message says why."""


def summarize_error(error: BaseException) -> str:
    """First line of the exception's message, or its type name if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def error_and_causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, then the one that it was raised from or that was being handled, and so on; each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
