"""Scheduling policies: which of the queued jobs runs next.

A policy assigns each job a key when it is queued. The smallest key runs first; equal keys run in order of arrival. Keys
never change, so the queue is an ordinary heap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.task import DnnTask


class Policy(Protocol):
    """Orders the shared queue."""

    def key(self, job: Job) -> int:
        """Smaller keys run first. `job.queued_ns` is set."""
        ...

    def offset_ns(self, task: DnnTask) -> int | None:
        """Key of the first job of a frame of `task` that arrives now, minus the current time.

        None: such a job never runs before one that is already waiting.
        """

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        """Whether a later frame of `other` may have to run before the next job of a frame of `task` in progress."""
        ...


class Fifo:
    """Order of arrival (Kim, Kim, Kim 2022, section 3.2)."""

    def key(self, job: Job) -> int:
        return 0

    def offset_ns(self, task: DnnTask) -> int | None:
        return None

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        return False


class Priority:
    """Higher priority first, with aging.

    Each priority step is worth `aging_ns` of waiting time: a job is overtaken only by jobs that arrive less than
    (priority difference) * aging_ns after it. No job starves.
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
    """Earliest deadline first; least slack first where execution times are known.

    If a task has `remaining_ns`, its jobs are ordered by the latest start time that still meets the deadline: deadline
    minus remaining time (least slack, Mok 1983).

    A frame without a deadline is treated as due `default_ns` after its arrival. Deadlines are absolute, so every
    waiting frame eventually has the earliest one and none starves.
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
        """A later frame of `other` can precede a job of `task` only if its slack on arrival is less than the deadline
        of `task`, because no job of `task` has more slack than that.
        """
        return self._slack_ns(other) < (self.default_ns if task.deadline_ns is None else task.deadline_ns)

    def _slack_ns(self, task: DnnTask) -> int:
        deadline_ns = self.default_ns if task.deadline_ns is None else task.deadline_ns
        return deadline_ns - (task.remaining_ns[0] if task.remaining_ns is not None else 0)


#: By value of the parameter `policy`. A factory gets aging_ns, the waiting time that is worth one priority step.
POLICIES: Mapping[str, Callable[[int], Policy]] = {
    "fifo": lambda aging_ns: Fifo(),
    "priority": Priority,
    "edf": lambda aging_ns: EarliestDeadlineFirst(),
}


def make_policy(name: str, aging_ns: int) -> Policy:
    """Return the policy of that name, one of POLICIES. Raises ValueError for any other name."""
    if name not in POLICIES:
        raise ValueError(f"policy is '{name}'; allowed: {', '.join(POLICIES)}")
    return POLICIES[name](aging_ns)
