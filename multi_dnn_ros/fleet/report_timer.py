"""For how long a job has not sent a message that is due, from which a hung rank is recognized."""

from __future__ import annotations

from multi_dnn_ros.fleet.messages import Busy, Message, Paused, Ready, Report

#: Steps without a report after which a job counts as hung, and the shortest such time.
SILENT_STEPS, SILENT_S = 20, 60.0
#: Longest time for which other jobs wait for one that does something else than steps.
AWAITED_S = 30.0


class ReportTimer:
    """Of one start of a job. No message is due before the first command with shares, nor while the job is paused.

    silent_s: seconds since the last message, or since the command that ended a pause, while a message is due.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._is_due = False
        self._step_s = 0.0
        self._busy: Busy | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the job does something else than steps, so that it does not pause soon."""
        return self._busy is not None

    @property
    def is_awaited(self) -> bool:
        """Whether other jobs wait for this one if they need it. They do not once it has been busy for too long: it may
        hang, and the limit of what it does can be hours.
        """
        return self._busy is None or self.silent_s < AWAITED_S

    @property
    def activity(self) -> str:
        """What the job does if it is busy."""
        return self._busy.activity if self._busy is not None else ""

    def command_sent(self) -> None:
        """The job has got a command. It does not extend the time of a job that owes a message already."""
        if not self._is_due:
            self._is_due, self.silent_s = True, 0.0

    def received(self, message: Message, number: int) -> None:
        """number: that of the last command."""
        if isinstance(message, Ready):  # of any rank, also of one that waits for a rank that hangs
            return
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
        limit_s = SILENT_STEPS * self._step_s
        limit_s = max(shortest_s if self._busy is None else self._busy.limit_s, limit_s)
        if not self._is_due or self.silent_s < limit_s:
            return None
        if self._busy is not None:
            return f"did not finish {self._busy.activity} within {limit_s:.4g} s ({self._busy.key})"
        step = f" (its steps took {self._step_s:.3g} s)" if self._step_s else ""
        return f"has reported nothing for {self.silent_s:.0f} s{step}"
