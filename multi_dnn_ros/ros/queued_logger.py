"""A logger of rclpy whose callers do not wait for the console."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.common.background_output import OUTPUT


class QueuedLogger:
    """Passes messages to a logger of rclpy in the thread of the output, once that is started.

    rclpy writes to the console without releasing the interpreter's lock: a console that is not read would stop all
    threads of the node. For /rosout, file, line and function are those of this class. Everything else, and messages
    with options such as `once`, which apply to the calling line, goes to the logger directly.

    logger: what Node.get_logger() returns.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    # Each severity has a line of its own, because rclpy allows only one per calling line.

    def debug(self, message: str, **options: Any) -> bool:
        """Log at DEBUG."""
        if options:
            return bool(self._logger.debug(message, **options))
        OUTPUT.submit(lambda text: self._logger.debug(text), message)
        return True

    def info(self, message: str, **options: Any) -> bool:
        """Log at INFO."""
        if options:
            return bool(self._logger.info(message, **options))
        OUTPUT.submit(lambda text: self._logger.info(text), message)
        return True

    def warning(self, message: str, **options: Any) -> bool:
        """Log at WARN."""
        if options:
            return bool(self._logger.warning(message, **options))
        OUTPUT.submit(lambda text: self._logger.warning(text), message)
        return True

    warn = warning

    def error(self, message: str, **options: Any) -> bool:
        """Log at ERROR."""
        if options:
            return bool(self._logger.error(message, **options))
        OUTPUT.submit(lambda text: self._logger.error(text), message)
        return True

    def fatal(self, message: str, **options: Any) -> bool:
        """Log at FATAL."""
        if options:
            return bool(self._logger.fatal(message, **options))
        OUTPUT.submit(lambda text: self._logger.fatal(text), message)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)
