"""What a DNN's thread tells, and to whom."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from multi_dnn_ros.engine.task import Drop, Result

log = logging.getLogger(__name__)
Report = TypeVar("Report")


@dataclass(frozen=True)
class Failure:
    """A DNN lost a frame, or those of a batch, by its own fault.

    consecutive: failures in a row. disabled: it takes no more frames; reason: why, if that is more than the message.
    retry_s: seconds until it takes frames again; None: until that is told.
    """

    dnn: str
    message: str
    consecutive: int
    disabled: bool
    reason: str = ""
    retry_s: float | None = None


@dataclass(frozen=True)
class Callbacks:
    """Who hears of results, drops and failures; called in the DNN's thread (drops also in the thread that offers)."""

    on_result: Callable[[Result], None]
    on_drop: Callable[[Drop], None]
    on_failure: Callable[[Failure], None]


def guarded(callback: Callable[[Report], None], report: Report) -> None:
    """Call it; a failing callback must not stop the DNN."""
    try:
        callback(report)
    except Exception:
        log.exception("the callback for %s raised", report)
