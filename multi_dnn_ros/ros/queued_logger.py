"""A logger of rclpy whose callers do not wait for the console."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from rclpy.logging import LoggingSeverity

from multi_dnn_ros.common.background_output import OUTPUT
from multi_dnn_ros.ros.severity_lines import LINES

#: Longest text of one message in bytes. rclpy adds severity, time and name; together they must fit into the page that a
#: pipe has free when it can be written to, because the rest of a longer message would block the whole process.
_MAX_BYTES = 3500


class QueuedLogger:
    """Passes messages to a logger of rclpy in the thread of the output, once that is started.

    rclpy writes to the console without releasing the interpreter's lock: a console that is not read would stop all
    threads of the node. A long message is therefore written as several. For /rosout, file, line and function are those
    of severity_lines.py, and the time is that of writing. Messages with options such as `once`, and all other methods,
    go to the logger directly.

    logger: what Node.get_logger() returns.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def debug(self, message: str, **options: Any) -> bool:
        """Log at DEBUG."""
        return self._logger.debug(message, **options) if options else self._submit(LoggingSeverity.DEBUG, message)

    def info(self, message: str, **options: Any) -> bool:
        """Log at INFO."""
        return self._logger.info(message, **options) if options else self._submit(LoggingSeverity.INFO, message)

    def warning(self, message: str, **options: Any) -> bool:
        """Log at WARN."""
        return self._logger.warning(message, **options) if options else self._submit(LoggingSeverity.WARN, message)

    warn = warning

    def error(self, message: str, **options: Any) -> bool:
        """Log at ERROR."""
        return self._logger.error(message, **options) if options else self._submit(LoggingSeverity.ERROR, message)

    def fatal(self, message: str, **options: Any) -> bool:
        """Log at FATAL."""
        return self._logger.fatal(message, **options) if options else self._submit(LoggingSeverity.FATAL, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def _submit(self, severity: LoggingSeverity, message: str) -> bool:
        if not self._logger.is_enabled_for(severity):
            return False
        for piece in pieces(str(message), _MAX_BYTES):
            OUTPUT.submit(partial(LINES[severity], self._logger), piece)
        return True


def pieces(text: str, max_bytes: int) -> Iterator[str]:
    """The text in parts of at most `max_bytes` (at least 4) bytes as UTF-8, divided at ends of lines where possible."""
    left = text.encode("utf-8", "replace")
    while len(left) > max_bytes:
        cut = left.rfind(b"\n", 1, max_bytes + 1)
        following = cut + 1
        if cut < 0:
            cut = max_bytes
            while left[cut] & 0xC0 == 0x80:  # not within a character
                cut -= 1
            following = cut
        yield left[:cut].decode("utf-8")
        left = left[following:]
    yield left.decode("utf-8")


def _skip_this_file_in_search_of_callers() -> None:
    """Options such as `once` apply to the line that calls the logger; without this to the line of this file."""
    with contextlib.suppress(ImportError, AttributeError):  # another version of rclpy
        from rclpy.impl import rcutils_logger

        rcutils_logger._internal_callers.append(os.path.realpath(__file__))


_skip_this_file_in_search_of_callers()
