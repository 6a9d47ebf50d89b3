"""Capture log warnings for a report."""

from __future__ import annotations

import logging


class CapturedWarnings(logging.Handler):
    """Context manager that collects this package's warnings, such as a job that cannot be captured, in `messages`."""

    def __init__(self, logger: str = "multi_dnn_ros") -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(logger)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> CapturedWarnings:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
