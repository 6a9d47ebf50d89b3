"""Calls of rclpy's logger, one line for each severity.

rclpy identifies a call by its file and line, and refuses another severity from the same line. These calls are not in
queued_logger.py, whose file rclpy skips when it looks for the calling line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.logging import LoggingSeverity

#: Severity -> function of the logger and the text.
LINES: dict[LoggingSeverity, Callable[[Any, str], object]] = {
    LoggingSeverity.DEBUG: lambda logger, text: logger.debug(text),
    LoggingSeverity.INFO: lambda logger, text: logger.info(text),
    LoggingSeverity.WARN: lambda logger, text: logger.warning(text),
    LoggingSeverity.ERROR: lambda logger, text: logger.error(text),
    LoggingSeverity.FATAL: lambda logger, text: logger.fatal(text),
}
