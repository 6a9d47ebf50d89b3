"""Logging in ROS's format: severities, a tree of loggers by dotted names, throttling, and sinks for /rosout."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final, TypeAlias

from multi_dnn_ros.common.background_output import OUTPUT
from multi_dnn_ros.standalone.log_sites import CallSite, LoggingSeverity
from multi_dnn_ros.standalone.missing import Surface

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
_Location: TypeAlias = tuple[str, int, int]  # file, line, instruction

_levels: dict[str, LoggingSeverity] = {}
_sinks: dict[str, Sink] = {}
_default_level = LoggingSeverity.INFO
_console = True


class RcutilsLogger(Surface):
    """A named logger; its level is its own, its nearest parent's, or the default."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._sites: dict[_Location, CallSite] = {}

    def get_child(self, name: str) -> RcutilsLogger:
        """Return the logger `<this name>.<name>`."""
        if not name:
            raise ValueError("Child logger name must not be empty.")
        return RcutilsLogger(f"{self.name}.{name}" if self.name else name)

    def set_level(self, level: LoggingSeverity | int) -> None:
        """Set the minimum severity of this logger and its children."""
        set_logger_level(self.name, level)

    def get_effective_level(self) -> LoggingSeverity:
        """Return the minimum severity that this logger passes."""
        return get_logger_effective_level(self.name)

    def is_enabled_for(self, severity: LoggingSeverity | int) -> bool:
        """Return whether messages of this severity pass."""
        return LoggingSeverity(severity) >= self.get_effective_level()

    def log(self, message: str, severity: LoggingSeverity | int, **options: Any) -> bool:
        """Log a message; the options apply per call site and must stay the same there.

        Args:
            message: the text.
            severity: its severity.
            options: `name`, to use another logger's name, and those of :class:`CallSite`.

        Returns:
            Whether the message was logged.

        Raises:
            TypeError: for an invalid or incomplete option, and for a message that is not a str.
            ValueError: for an unknown severity, and if a call site changes its severity, name or options.
        """
        severity = LoggingSeverity(severity)
        if severity < self.get_effective_level():
            return False
        name: str = options.pop("name", self.name)
        frame = _caller()
        location = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti) if frame else ("", 0, 0)
        current = CallSite(severity, name, options)
        with _lock:
            site = self._sites.get(location)
            if site is None:
                if len(self._sites) >= _MAX_CALL_SITES:
                    self._sites.clear()  # generated code can create any number of call sites
                site = self._sites[location] = current
            else:
                site.check_same(current)
            if not site.passes():
                return False
        if not isinstance(message, str):
            raise TypeError(f"a log message must be a str, not {message!r:.80}")
        _emit(severity, name, message, location[0], frame.f_code.co_name if frame else "", location[1])
        return True

    def debug(self, message: str, **options: Any) -> bool:
        """Log at DEBUG; see :meth:`log` for the options."""
        return self.log(message, LoggingSeverity.DEBUG, **options)

    def info(self, message: str, **options: Any) -> bool:
        """Log at INFO; see :meth:`log` for the options."""
        return self.log(message, LoggingSeverity.INFO, **options)

    def warning(self, message: str, **options: Any) -> bool:
        """Log at WARN; see :meth:`log` for the options."""
        return self.log(message, LoggingSeverity.WARN, **options)

    def warn(self, message: str, **options: Any) -> bool:
        """Log at WARN; see :meth:`log` for the options."""
        return self.log(message, LoggingSeverity.WARN, **options)

    def error(self, message: str, **options: Any) -> bool:
        """Log at ERROR; see :meth:`log` for the options."""
        return self.log(message, LoggingSeverity.ERROR, **options)

    def fatal(self, message: str, **options: Any) -> bool:
        """Log at FATAL; see :meth:`log` for the options."""
        return self.log(message, LoggingSeverity.FATAL, **options)


def get_logger(name: str) -> RcutilsLogger:
    """Return a logger by its dotted name."""
    if not name:
        raise ValueError("Logger name must not be empty.")
    child: RcutilsLogger = _root_logger.get_child(name)
    return child


def get_logging_severity_from_string(log_severity: str) -> LoggingSeverity:
    """Return a severity by its name, case-insensitively.

    Raises:
        RuntimeError: for an unknown name.
    """
    try:
        return LoggingSeverity[log_severity.upper()]
    except KeyError:
        known = ", ".join(severity.name for severity in LoggingSeverity)
        raise RuntimeError(
            f"Failed to get log severity from name {log_severity!r}; it must be one of {known}"
        ) from None


def clear_config() -> None:
    """Reset all loggers to the default severity, and the default severity to INFO."""
    global _default_level
    with _lock:
        _levels.clear()
        _default_level = LoggingSeverity.INFO


def set_logger_level(name: str, level: LoggingSeverity | int, detailed_error: bool = False) -> None:
    """Set a logger's minimum severity; UNSET inherits the parent's, and the empty name sets the default.

    Raises:
        ValueError: for an unknown severity.
    """
    global _default_level
    level = LoggingSeverity(level)
    with _lock:
        if not name:
            _default_level = level
        elif level == LoggingSeverity.UNSET:
            _levels.pop(name, None)
        else:
            _levels[name] = level


def get_logger_level(name: str) -> LoggingSeverity:
    """Return a logger's own minimum severity; UNSET if it has none."""
    return _default_level if not name else _levels.get(name, LoggingSeverity.UNSET)


def get_logger_effective_level(name: str) -> LoggingSeverity:
    """Return a logger's effective minimum severity: its own, its nearest parent's, or the default."""
    if _levels:
        with _lock:
            while name:
                if name in _levels:
                    return _levels[name]
                name = name.rpartition(".")[0]
    return _default_level


def configure(default: LoggingSeverity | None, levels: dict[str, LoggingSeverity], *, console: bool) -> None:
    """Apply the command line: default severity, severities of single loggers, and whether to print."""
    global _default_level, _console
    with _lock:
        if default is not None:
            _default_level = default
        _levels.update(levels)
        _console = console


def add_sink(name: str, sink: Sink) -> None:
    """Also pass every message of a logger and its children to `sink`."""
    with _lock:
        _sinks[name] = sink


def remove_sink(name: str) -> None:
    """Stop passing messages to a sink."""
    with _lock:
        _sinks.pop(name, None)


_root_logger: Any = RcutilsLogger()


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
        OUTPUT.submit(partial(_print, stream), f"{colour}{output}\033[0m" if colour else output)
    for sink_name, sink in list(_sinks.items()):
        if name == sink_name or name.startswith(f"{sink_name}."):
            sink(stamp, severity, name, text, file, function, line)


def _print(stream: Any, line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the stream is closed; logging must not end the node
        print(line, file=stream, flush=True)


def _colours_wanted(stream: Any) -> bool:
    forced = os.environ.get("RCUTILS_COLORIZED_OUTPUT")
    return forced == "1" if forced in ("0", "1") else stream.isatty()
