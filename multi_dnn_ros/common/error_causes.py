"""The errors that led to an error."""

from __future__ import annotations

from collections.abc import Iterator


def error_and_causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, then the one that caused it, and so on; nothing for None.

    The cause is that of `raise ... from`, otherwise the error that was being handled when this one was raised. `from
    None` hides the latter from tracebacks only: it is used for errors that quote the text of what they replace. Each
    error comes once, also if errors name each other as causes.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
