"""What an engine reports: failures, the callbacks for all reports, and what it is computing at the moment."""

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
    """A frame, or a batch of frames, was dropped because of an error of the DNN.

    consecutive: number of failures in a row. disabled: whether the DNN accepts no more frames. reason: why it is
    disabled; empty if it is not. retry_s: seconds until it accepts frames again; None: unknown or never.
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
    frame or stops the engine).
    """

    on_result: Callable[[Result], None]
    on_drop: Callable[[Drop], None]
    on_failure: Callable[[Failure], None]


class Observer:
    """Ignores all calls; a subclass notes them, in the engine's threads. It must be fast and must not raise.

    `began` and `ended` are called equally often. A DNN may have several operations in progress.
    """

    def began(self, dnn: str) -> None:
        """On a CPU, a job starts; on a GPU, an inference is launched. On both, decoding of its outputs starts."""

    def ended(self, dnn: str) -> None:
        """On a CPU, the job is done; on a GPU, the outputs are there, or it is dropped. On both, decoding is done."""

    def device_failed(self, dnn: str, error: BaseException) -> None:
        """A job, its outputs or its image raised an error that :func:`is_device_failure` recognizes; before `ended`.

        Need not return: on a GPU nothing can be computed in this process any more.
        """


def call_and_log_errors(callback: Callable[[Report], None], report: Report) -> None:
    """Call `callback`; a failing callback must not stop the DNN."""
    try:
        callback(report)
    except Exception:
        log.exception("the callback for a %s failed; the DNN continues", type(report).__name__)
