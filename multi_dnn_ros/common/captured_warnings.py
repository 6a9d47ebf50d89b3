"""What is logged within a block, kept for a report."""

from __future__ import annotations

import logging


class CapturedWarnings(logging.Handler):
    """The warnings of this package while the block runs, such as a job that cannot be captured: `texts`."""

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
