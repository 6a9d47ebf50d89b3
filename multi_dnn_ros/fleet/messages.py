"""Messages between the supervisor and the processes (ranks) of a job. Every rank gets every command, in order."""

from __future__ import annotations

from dataclasses import dataclass

from multi_dnn_ros.fleet.shares import Shares, used


@dataclass(frozen=True)
class Command:
    """The state of a job from its next step on.

    number: counts the commands without `prepare`. shares: tenths by rank. before: the ranks with a share until now, the
    first of which has the state of the training; empty at the start. pause: keep the state and wait. stop: write a
    checkpoint and end. prepare: read the data and initialize the device.
    """

    number: int
    shares: Shares
    before: tuple[int, ...] = ()
    pause: bool = False
    stop: bool = False
    prepare: bool = False

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks with a share."""
        return tuple(used(self.shares))


@dataclass(frozen=True)
class Report:
    """Progress, from the first active rank.

    number: that of the command in force. done, total: steps of the job. count: steps under this command. step_s: median
    time of the last of these steps, without the first; a step ends when its loss is known (see JobTraining.step). loss:
    that of the last step.
    """

    number: int
    done: int
    total: int
    count: int
    step_s: float
    loss: float


@dataclass(frozen=True)
class Paused:
    """The command with `pause` is in force. done, total: steps of the job."""

    number: int
    done: int
    total: int


@dataclass(frozen=True)
class Ready:
    """From every rank that the command `number` concerns: it has read the data (`prepare`), or its network is ready for
    other shares, and it joins the other ranks now.
    """

    number: int


@dataclass(frozen=True)
class Busy:
    """From the first active rank, before it does something else than steps. activity: for messages, such as `writing a
    checkpoint`. limit_s: longest time until the next message. key: the key of the job that sets this limit.
    """

    activity: str
    limit_s: float
    key: str


@dataclass(frozen=True)
class NotSaved:
    """A checkpoint could not be written; the job continues, and tries again at the time of the next one."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The job has ended: `finished`, with scores on the test part, or stopped with a checkpoint. losses: by step."""

    finished: bool
    done: int
    losses: tuple[float, ...] = ()
    scores: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Failed:
    """A rank cannot continue. expected: an error of the job (model, data, loss) that would occur again. unit_lost: the
    whole unit was lost.
    """

    text: str
    out_of_memory: bool
    expected: bool
    unit_lost: bool = False


Message = Report | Paused | Ready | Busy | NotSaved | Ended | Failed
