"""Logging in ROS's format: severities, a tree of loggers by dotted names, throttling, and sinks for /rosout."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from multi_dnn_ros.standalone.missing import Surface

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.clock import Clock


class LoggingSeverity(IntEnum):
    """How grave a message is."""

    UNSET = 0
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


# (stamp in nanoseconds, severity, logger name, text, file, function, line)
Sink: TypeAlias = Callable[[int, LoggingSeverity, str, str, str, str, int], None]

_DEFAULT_FORMAT: Final = "[{severity}] [{time}] [{name}]: {message}"
_COLOURS: Final = {
    LoggingSeverity.DEBUG: "\033[32m",
    LoggingSeverity.WARN: "\033[33m",
    LoggingSeverity.ERROR: "\033[31m",
    LoggingSeverity.FATAL: "\033[31m",
}
_MAX_CALL_SITES: Final = 10_000

_lock = threading.RLock()
_levels: dict[str, LoggingSeverity] = {}
_sinks: dict[str, Sink] = {}
_default_level = LoggingSeverity.INFO
_console = True


class RcutilsLogger(Surface):
    """A named logger; its level is its own, its nearest parent's, or the default."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._sites: dict[tuple[str, int, str], list[int]] = {}

    def get_child(self, name: str) -> RcutilsLogger:
        """Return the logger `<this name>.<name>`."""
        if not name:
            raise ValueError("the name of a child logger must not be empty")
        return RcutilsLogger(f"{self.name}.{name}" if self.name else name)

    def set_level(self, level: LoggingSeverity | int) -> None:
        """Set the least severity that this logger and its children let through."""
        set_logger_level(self.name, level)

    def get_effective_level(self) -> LoggingSeverity:
        """Return the least severity that this logger lets through."""
        return get_logger_effective_level(self.name)

    def is_enabled_for(self, severity: LoggingSeverity | int) -> bool:
        """Return whether a message of this severity is let through."""
        return LoggingSeverity(severity) >= self.get_effective_level()

    def log(
        self,
        message: str,
        severity: LoggingSeverity | int,
        name: str | None = None,
        *,
        throttle_duration_sec: float | None = None,
        throttle_time_source_type: Clock | None = None,
        skip_first: bool = False,
        once: bool = False,
    ) -> bool:
        """Log a message; the conditions count per place in the source that calls.

        Args:
            message: the text.
            severity: how grave it is.
            name: another logger's name than this one's.
            throttle_duration_sec: at most one message from this place per so many seconds.
            throttle_time_source_type: the clock that the throttle goes by; the steady clock when left out.
            skip_first: leave out the first message from this place.
            once: let only the first message from this place through.

        Returns:
            Whether the message was logged.
        """
        severity = LoggingSeverity(severity)
        name = self.name if name is None else name
        if severity < get_logger_effective_level(name):
            return False
        frame = _caller()
        site = (frame.f_code.co_filename, frame.f_lineno, name) if frame else ("", 0, name)
        if (once or skip_first or throttle_duration_sec is not None) and not self._passes(
            site, throttle_duration_sec, throttle_time_source_type, skip_first, once
        ):
            return False
        _emit(severity, name, str(message), site[0], frame.f_code.co_name if frame else "", site[1])
        return True

    def _passes(
        self, site: tuple[str, int, str], throttle_sec: float | None, clock: Clock | None, skip_first: bool, once: bool
    ) -> bool:
        now = time.monotonic_ns() if clock is None else clock.now_ns()
        with _lock:
            calls_and_last = self._sites.get(site)
            if calls_and_last is None:
                if len(self._sites) >= _MAX_CALL_SITES:
                    self._sites.clear()  # generated code could make places without end
                calls_and_last = self._sites[site] = [0, -1]
            calls_and_last[0] += 1
            calls, last = calls_and_last
            if skip_first and calls == 1:
                return False
            if once and calls > 1 + skip_first:
                return False
            if throttle_sec is not None:
                # A clock that went backwards starts a new period.
                if last >= 0 and 0 <= now - last < throttle_sec * 1e9:
                    return False
                calls_and_last[1] = now
            return True

    def debug(self, message: str, **conditions: Any) -> bool:
        """Log at DEBUG; see :meth:`log` for the conditions."""
        return self.log(message, LoggingSeverity.DEBUG, **conditions)

    def info(self, message: str, **conditions: Any) -> bool:
        """Log at INFO; see :meth:`log` for the conditions."""
        return self.log(message, LoggingSeverity.INFO, **conditions)

    def warning(self, message: str, **conditions: Any) -> bool:
        """Log at WARN; see :meth:`log` for the conditions."""
        return self.log(message, LoggingSeverity.WARN, **conditions)

    def warn(self, message: str, **conditions: Any) -> bool:
        """Log at WARN; see :meth:`log` for the conditions."""
        return self.log(message, LoggingSeverity.WARN, **conditions)

    def error(self, message: str, **conditions: Any) -> bool:
        """Log at ERROR; see :meth:`log` for the conditions."""
        return self.log(message, LoggingSeverity.ERROR, **conditions)

    def fatal(self, message: str, **conditions: Any) -> bool:
        """Log at FATAL; see :meth:`log` for the conditions."""
        return self.log(message, LoggingSeverity.FATAL, **conditions)


def get_logger(name: str) -> RcutilsLogger:
    """Return a logger by its dotted name."""
    if not name:
        raise ValueError("the name of a logger must not be empty")
    return RcutilsLogger(name)


def set_logger_level(name: str, level: LoggingSeverity | int) -> None:
    """Set a logger's least severity; UNSET gives it back to its parent."""
    level = LoggingSeverity(level)
    with _lock:
        if level == LoggingSeverity.UNSET:
            _levels.pop(name, None)
        else:
            _levels[name] = level


def get_logger_level(name: str) -> LoggingSeverity:
    """Return a logger's own least severity, UNSET when it has none."""
    return _levels.get(name, LoggingSeverity.UNSET)


def get_logger_effective_level(name: str) -> LoggingSeverity:
    """Return the least severity that a logger lets through: its own, its nearest parent's, or the default."""
    if _levels:
        with _lock:
            while name:
                if name in _levels:
                    return _levels[name]
                name = name.rpartition(".")[0]
    return _default_level


def configure(default: LoggingSeverity | None, levels: dict[str, LoggingSeverity], *, console: bool) -> None:
    """Set what the command line says: the default severity, single loggers' severities, whether to print."""
    global _default_level, _console
    with _lock:
        if default is not None:
            _default_level = default
        _levels.update(levels)
        _console = console


def add_sink(name: str, sink: Sink) -> None:
    """Hand every message of a logger and its children to `sink` too."""
    with _lock:
        _sinks[name] = sink


def remove_sink(name: str) -> None:
    """Stop handing messages to a sink."""
    with _lock:
        _sinks.pop(name, None)


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _emit(severity: LoggingSeverity, name: str, text: str, file: str, function: str, line: int) -> None:
    stamp = time.time_ns()
    if _console:
        values = {
            "severity": severity.name,
            "name": name,
            "message": text,
            "time": f"{stamp // 10**9}.{stamp % 10**9:09d}",
            "time_as_nanoseconds": str(stamp),
            "function_name": function,
            "file_name": file,
            "line_number": str(line),
        }
        output = os.environ.get("RCUTILS_CONSOLE_OUTPUT_FORMAT") or _DEFAULT_FORMAT
        for key, value in values.items():
            if key != "message":
                output = output.replace(f"{{{key}}}", value)
        output = output.replace("{message}", text)
        stream = sys.stdout if os.environ.get("RCUTILS_LOGGING_USE_STDOUT") == "1" else sys.stderr
        colour = _COLOURS.get(severity, "") if _colours_wanted(stream) else ""
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more; logging must not end the node
            print(f"{colour}{output}\033[0m" if colour else output, file=stream, flush=True)
    for sink_name, sink in list(_sinks.items()):
        if name == sink_name or name.startswith(f"{sink_name}."):
            sink(stamp, severity, name, text, file, function, line)


def _colours_wanted(stream: Any) -> bool:
    forced = os.environ.get("RCUTILS_COLORIZED_OUTPUT")
    return forced == "1" if forced in ("0", "1") else stream.isatty()
