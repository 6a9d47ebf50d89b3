"""What an engine process reports about its frames."""

from __future__ import annotations

from typing import Any, Protocol

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing


class Outcomes(Protocol):
    """For the methods, see :class:`multi_dnn_ros.serving.accounts.Accounts`, which implements this protocol."""

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None: ...

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None: ...

    def failure(self, failure: Failure) -> None: ...

    def enabled(self, dnn: str) -> None: ...
