"""SIGINT and SIGTERM end the contexts, even while the main thread waits inside DDS.

Python runs a signal handler only between two bytecodes of the main thread, and that thread may be waiting in C. The
interpreter writes a byte to a wake-up descriptor as soon as a signal arrives; a thread blocked on that descriptor wakes
the executors, the main thread returns from C, and the handler runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from enum import IntEnum
from types import FrameType
from typing import Any, Protocol


class SignalHandlerOptions(IntEnum):
    """Which signals `rclpy.init()` handles."""

    NO = 0
    SIGINT = 1
    SIGTERM = 2
    ALL = 3


_OPTIONS = {signal.SIGINT: SignalHandlerOptions.SIGINT, signal.SIGTERM: SignalHandlerOptions.SIGTERM}


class Interruptible(Protocol):
    """A context that a signal ends."""

    def wake(self) -> None:
        """Make all waits of the context return."""

    def interrupt(self) -> None:
        """Make the context's `ok()` false."""


_lock = threading.RLock()
_contexts: weakref.WeakSet[Any] = weakref.WeakSet()
_previous: dict[int, Any] = {}
_waker: tuple[threading.Thread, int, int, int] | None = None  # thread, read end, write end, previous descriptor


def watch(context: Interruptible) -> None:
    """Register a context to be ended by signals."""
    with _lock:
        _contexts.add(context)


def install_signal_handlers(options: SignalHandlerOptions = SignalHandlerOptions.ALL) -> None:
    """Handle the selected signals; no effect outside the main thread, where Python allows no handlers."""
    global _waker
    if options == SignalHandlerOptions.NO or threading.current_thread() is not threading.main_thread():
        return
    with _lock:
        if _waker is None:
            read_end, write_end = os.pipe()
            os.set_blocking(write_end, False)
            before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
            thread = threading.Thread(target=_wake_on_signal, args=(read_end,), name="rclpy signals", daemon=True)
            _waker = (thread, read_end, write_end, before)
            thread.start()
        for number, option in _OPTIONS.items():
            if options & option and number not in _previous:
                _previous[number] = signal.signal(number, _handle)


def uninstall_signal_handlers() -> None:
    """Restore the previous handlers, and end the thread."""
    global _waker
    with _lock:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in list(_previous.items()):
            if signal.getsignal(number) is _handle:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            del _previous[number]
        if _waker is None:
            return
        thread, read_end, write_end, before = _waker
        _waker = None
        signal.set_wakeup_fd(before)
    os.write(write_end, b"\0")
    thread.join()
    os.close(read_end)
    os.close(write_end)


def get_current_signal_handlers_options() -> SignalHandlerOptions:
    """Return which signals are handled."""
    return SignalHandlerOptions(sum(option for number, option in _OPTIONS.items() if number in _previous))


def _wake_on_signal(read_end: int) -> None:
    while True:
        with contextlib.suppress(InterruptedError):
            numbers = os.read(read_end, 64)
            if not numbers or 0 in numbers:
                return
            for context in list(_contexts):
                context.wake()


def _handle(number: int, frame: FrameType | None) -> None:
    for context in list(_contexts):
        context.interrupt()
    before = _previous.get(number)
    if callable(before):
        before(number, frame)  # for SIGINT Python's handler, which raises KeyboardInterrupt
