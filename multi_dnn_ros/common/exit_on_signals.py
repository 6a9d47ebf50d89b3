"""SIGINT and SIGTERM as normal ways to end a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM end this process at once with exit code 0, as long as nobody sets other
    handlers. For the main thread of a process that ends after the block.

    Both signals are ignored from then on: a terminal and a launcher may both send one, and the second one would end the
    interpreter, which resets its handlers when it exits, by the signal.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)
