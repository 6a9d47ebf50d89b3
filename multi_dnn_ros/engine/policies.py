"""Which of the queued jobs goes next.

A policy gives each job a key when it is queued; the smallest key goes first, equal keys in order of arrival. Keys never
change afterwards, so that the queue is an ordinary heap.
"""

from __future__ import annotations

from typing import Protocol

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.task import DnnTask


class Policy(Protocol):
    """Orders the shared queue."""

    def key(self, job: Job) -> int:
        """The smaller, the sooner. `job.queued_ns` is set."""
        ...

    def offset_ns(self, task: DnnTask) -> int | None:
        """The key of the first job of a frame of `task` that arrives now, less the time now.

        None: such a job never goes before one that waits already.
        """

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        """Whether a frame of `other` that comes while one of `task` is under way may have to go before its next job."""
        ...


class Fifo:
    """Order of arrival, as in the founding paper (Kim, Kim, Kim 2022, section 3.2)."""

    def key(self, job: Job) -> int:
        return 0

    def offset_ns(self, task: DnnTask) -> int | None:
        return None

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        return False


class Priority:
    """Higher priority first, with ageing.

    Each step of priority is worth `aging_ns` of waiting: a job is overtaken only by jobs that arrive less than
    (difference of priorities) * aging_ns after it, so none waits for ever however many important ones keep coming.
    """

    def __init__(self, aging_ns: int) -> None:
        if aging_ns <= 0:
            raise ValueError(f"aging_ns is {aging_ns}; it must be above 0, or low priorities starve")
        self.aging_ns = aging_ns

    def key(self, job: Job) -> int:
        return job.queued_ns - job.inference.priority * self.aging_ns

    def offset_ns(self, task: DnnTask) -> int | None:
        return -task.priority * self.aging_ns

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        return other.priority > task.priority


class EarliestDeadlineFirst:
    """The job whose frame is due first; where the times of jobs are known, the one that must start first.

    With `remaining_ns` of a task its jobs go by the latest start that still meets the deadline: when the frame is due
    less what it has left to run, so that less slack goes first (Mok 1983, least slack).

    A frame without a deadline competes as if it were due `default_ns` after its arrival. These are points in time:
    every waiting frame becomes the earliest one some day, so none starves.
    """

    def __init__(self, default_ns: int = 1_000_000_000) -> None:
        self.default_ns = default_ns

    def key(self, job: Job) -> int:
        inference = job.inference
        due_ns = inference.received_ns + self.default_ns if inference.due_ns is None else inference.due_ns
        remaining_ns = inference.task.remaining_ns
        return due_ns - (remaining_ns[job.index] if remaining_ns is not None else 0)

    def offset_ns(self, task: DnnTask) -> int | None:
        return self._slack_ns(task)

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        """A frame that comes later must start earlier only if it has less time from its arrival on."""
        return self._slack_ns(other) < (self.default_ns if task.deadline_ns is None else task.deadline_ns)

    def _slack_ns(self, task: DnnTask) -> int:
        deadline_ns = self.default_ns if task.deadline_ns is None else task.deadline_ns
        return deadline_ns - (task.remaining_ns[0] if task.remaining_ns is not None else 0)


def make_policy(name: str, aging_ns: int) -> Policy:
    """The policy of that name: fifo, priority or edf."""
    if name == "fifo":
        return Fifo()
    if name == "priority":
        return Priority(aging_ns)
    if name == "edf":
        return EarliestDeadlineFirst()
    raise ValueError(f"policy is '{name}'; allowed are fifo, priority, edf")
