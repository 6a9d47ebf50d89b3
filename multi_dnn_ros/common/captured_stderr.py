"""Captures what one thread prints to standard error."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_LOCK = threading.RLock()


@contextmanager
def captured_stderr() -> Iterator[io.StringIO]:
    """Collect what the calling thread writes to sys.stderr. What other threads write still goes there; one that enters
    such a block waits until this one has ended.
    """
    with _LOCK:
        original, captured = sys.stderr, io.StringIO()
        own = _ThreadStderr(original, captured)
        sys.stderr = own
        try:
            yield captured
        finally:
            if sys.stderr is own:
                sys.stderr = original


class _ThreadStderr(io.TextIOBase):
    """A stream that separates the text of the thread that creates it."""

    def __init__(self, original: TextIO, captured: io.StringIO) -> None:
        self._original = original
        self._captured = captured
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        stream = self._captured if threading.get_ident() == self._thread else self._original
        return stream.write(text)

    def flush(self) -> None:
        self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()
