"""SIGINT and SIGTERM as normal ways to end a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM end this process immediately with exit code 0, unless other handlers are set.
    For the main thread of a process that ends after the block.

    After the block both signals are ignored. A terminal and a launcher may each send one, and because the interpreter
    resets its handlers when it exits, the second signal would kill the process.
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
