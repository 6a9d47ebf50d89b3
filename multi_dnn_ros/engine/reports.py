"""The callbacks of an engine, and the failures that it reports."""

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
    """A DNN lost a frame, or a batch of frames, by an error of its own.

    consecutive: failures in a row. disabled: it accepts no more frames. reason: why it is disabled, if more than the
    message. retry_s: seconds until it accepts frames again; None: unknown or never.
    """

    dnn: str
    message: str
    consecutive: int
    disabled: bool
    reason: str = ""
    retry_s: float | None = None


@dataclass(frozen=True)
class Callbacks:
    """Receivers of results, drops and failures; called in the DNN's thread (on_drop also in the thread that offers a
    frame).
    """

    on_result: Callable[[Result], None]
    on_drop: Callable[[Drop], None]
    on_failure: Callable[[Failure], None]


def guarded(callback: Callable[[Report], None], report: Report) -> None:
    """Call `callback`; a failing callback must not stop the DNN."""
    try:
        callback(report)
    except Exception:
        log.exception("the callback for %s raised", report)
