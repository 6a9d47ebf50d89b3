"""For how long a job has not sent a message that is due, from which a hung rank is recognized."""

from __future__ import annotations

import math

from multi_dnn_ros.fleet.messages import Busy, Message, Paused, Report

#: Steps without a report after which a job counts as hung, and the shortest such time.
SILENT_STEPS, SILENT_S = 20, 60.0


class ReportTimer:
    """Of one start of a job. No message is due before the first command with shares, nor while the job is paused.

    silent_s: seconds since the last message, or since the command that ended a pause, while a message is due.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._is_due = False
        self._step_s = 0.0
        self._busy: Busy | None = Busy(None)  # until the first message: the ranks read their data

    @property
    def is_busy(self) -> bool:
        """Whether the job does something else than steps, so that it does not pause soon."""
        return self._busy is not None

    @property
    def is_busy_without_limit(self) -> bool:
        """Whether the job does something that can take hours: it reads its data or is scored."""
        return self._busy is not None and self._busy.limit_s is None

    def command_sent(self) -> None:
        """The job has got a command. It does not extend the time of a job that owes a message already."""
        if not self._is_due:
            self._is_due, self.silent_s = True, 0.0

    def received(self, message: Message, number: int) -> None:
        """number: that of the last command."""
        self.silent_s = 0.0
        self._busy = message if isinstance(message, Busy) else None
        self._is_due = not (isinstance(message, Paused) and message.number == number)
        if isinstance(message, Report):
            self._step_s = message.step_s

    def add(self, seconds: float) -> None:
        """Time has passed in which messages were received."""
        if self._is_due:
            self.silent_s += seconds

    def overdue(self, shortest_s: float) -> str | None:
        """What to say about a job that has sent nothing for too long; None: it is not overdue.

        shortest_s: limit for a job with short steps.
        """
        limit_s = max(shortest_s, SILENT_STEPS * self._step_s)
        if self._busy is not None:
            limit_s = max(shortest_s, math.inf if self._busy.limit_s is None else self._busy.limit_s)
        if not self._is_due or self.silent_s < limit_s:
            return None
        step = f" (its steps took {self._step_s:.3g} s)" if self._step_s else ""
        return f"has reported nothing for {self.silent_s:.0f} s{step}: a process of the job hangs"
