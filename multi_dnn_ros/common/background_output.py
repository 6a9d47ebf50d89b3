"""Writes log lines in a thread, so that nobody waits for a stdout or stderr that is not read."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

#: Maximum number of characters that wait to be written; each line counts _LINE_CHARACTERS more.
_MAX_CHARACTERS = 4_000_000
_LINE_CHARACTERS = 200
_STDOUT, _STDERR = 1, 2


class BackgroundOutput:
    """Writes texts in the order of their submission; in the thread of the caller until :meth:`start`.

    A pipe or terminal that is not read blocks its writers; after :meth:`start` it blocks only the thread of this
    object. While more than `max_characters` wait, further texts are dropped; their number is written in their place.

    on_dropped: writes the number of texts that were dropped. is_blocked: whether :meth:`close` has failed.
    """

    def __init__(
        self,
        on_dropped: Callable[[int], object] | None = None,
        max_characters: int = _MAX_CHARACTERS,
    ) -> None:
        self._on_dropped = on_dropped if on_dropped is not None else _print_dropped
        self._max_characters = max_characters
        self._changed = threading.Condition()  # with an RLock: a signal handler may submit a text, too
        self._waiting: deque[tuple[Callable[[str], object], str]] = deque()
        self._characters = 0
        self._dropped = 0
        self._is_ending = False
        self.is_blocked = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write in a thread from now on. No effect if it has started."""
        with self._changed:
            if self._thread is None and not self.is_blocked:
                self._is_ending = False
                self._thread = threading.Thread(target=self._run, name="background output", daemon=True)
                self._thread.start()

    def submit(self, write: Callable[[str], object], text: str) -> None:
        """Call write(text) in the thread, which ignores its exceptions. Never blocks after :meth:`start`.

        A text that `write` itself submits is written at once.
        """
        thread = self._thread
        if thread is not None and threading.current_thread() is not thread:
            with self._changed:
                if self._thread is not None:
                    self._put(write, text)
                    return
        if not self.is_blocked:
            write(text)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, then write in the thread of the caller again.

        Returns False if not everything could be written within the timeout: all further texts are dropped, and the
        process has to end with os._exit(), because the thread may hold the lock of sys.stderr.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            thread = self._thread
            if thread is None:
                return not self.is_blocked
            self._is_ending = True
            self._changed.notify_all()
        thread.join(max(0.0, end - time.monotonic()))
        with self._changed:
            self._thread = None
            self.is_blocked = thread.is_alive()
            late = [] if self.is_blocked else list(self._waiting)  # submitted after the thread had ended
        for write, text in late:
            with contextlib.suppress(Exception):
                write(text)
        return not self.is_blocked

    def _put(self, write: Callable[[str], object], text: str) -> None:
        size = len(text) + _LINE_CHARACTERS
        if self._characters + size > self._max_characters and self._waiting:
            self._dropped += 1
            return
        if self._dropped:
            self._waiting.append((self._write_dropped, str(self._dropped)))
            self._characters += len(str(self._dropped)) + _LINE_CHARACTERS
            self._dropped = 0
        self._waiting.append((write, text))
        self._characters += size
        self._changed.notify_all()

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._dropped or self._is_ending)
                if self._waiting:
                    write, text = self._waiting[0]
                elif self._dropped:
                    write, text, self._dropped = self._write_dropped, str(self._dropped), 0
                    self._waiting.append((write, text))
                    self._characters += len(text) + _LINE_CHARACTERS
                else:
                    return
            _wait_until_writable()
            with contextlib.suppress(Exception):  # a text that cannot be written must not end this thread
                write(text)
            with self._changed:  # only now, so that a text that is being written counts
                self._waiting.popleft()
                self._characters -= len(text) + _LINE_CHARACTERS

    def _write_dropped(self, count: str) -> None:
        self._on_dropped(int(count))


def _wait_until_writable() -> None:
    """Wait until the console takes at least a page.

    Waiting here and not in the write matters to rclpy, which writes without releasing the interpreter's lock.
    """
    poll = select.poll()
    poll.register(_STDOUT if os.environ.get("RCUTILS_LOGGING_USE_STDOUT") == "1" else _STDERR, select.POLLOUT)
    poll.poll()  # also returns if the descriptor is closed, or its reader has ended


def _print_dropped(count: int) -> None:
    text = f"{count} log lines were dropped: the reader of the output was too slow"
    print(text, file=sys.stderr, flush=True)


#: The output of this process.
OUTPUT = BackgroundOutput()
