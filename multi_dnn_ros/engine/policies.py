"""Scheduling policies: which frame goes first.

On a CPU a policy orders the jobs that wait for a slot: the smallest key runs first, and equal keys run in order of
arrival. On a GPU it decides which of the frames that are launched hold the others back at their gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.task import DnnTask


class Policy(Protocol):
    """An order of frames."""

    def key(self, inference: Inference, queued_ns: int, job: int = 0) -> int:
        """Key of the inference's job with this index, which waits since `queued_ns`. Smaller keys run first."""
        ...

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        """Whether a later frame of `other` may have to run before the next job of a frame of `task`."""
        ...

    def holds_back(self, first: Inference, second: Inference, now_ns: int) -> bool:
        """On a GPU: whether `second` waits at its next gate while `first` runs. Never true in both directions.

        A waiting frame leaves a part of the GPU unused, so this is asked only where it serves a purpose.
        """
        ...


class Fifo:
    """Order of arrival (Kim, Kim, Kim 2022, section 3.2)."""

    def key(self, inference: Inference, queued_ns: int, job: int = 0) -> int:
        return 0

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        return False

    def holds_back(self, first: Inference, second: Inference, now_ns: int) -> bool:
        return False


class Priority:
    """Higher priority first, with aging.

    Each priority step is worth `aging_ns` of waiting time: a job is overtaken only by jobs that arrive less than
    (priority difference) * aging_ns after it. No job starves.
    """

    def __init__(self, aging_ns: int = 50_000_000) -> None:
        if aging_ns <= 0:
            raise ValueError(f"aging_ns is {aging_ns}; it must be above 0, or low priorities starve")
        self.aging_ns = aging_ns

    def key(self, inference: Inference, queued_ns: int, job: int = 0) -> int:
        return queued_ns - inference.task.priority * self.aging_ns

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        return other.priority > task.priority

    def holds_back(self, first: Inference, second: Inference, now_ns: int) -> bool:
        if first.task.priority <= second.task.priority:
            return False
        return self.key(first, first.started_ns) < self.key(second, second.started_ns)


class EarliestDeadlineFirst:
    """Earliest deadline first; least slack first where execution times are known.

    If a task has `remaining_ns`, its jobs are ordered by the latest start time that still meets the deadline: deadline
    minus remaining time (least slack, Mok 1983).

    A frame without a deadline is treated as due `default_ns` after its arrival. Deadlines are absolute, so every
    waiting frame eventually has the earliest one and none starves.
    """

    def __init__(self, default_ns: int = 1_000_000_000) -> None:
        self.default_ns = default_ns

    def key(self, inference: Inference, queued_ns: int, job: int = 0) -> int:
        due_ns = inference.received_ns + self.default_ns if inference.due_ns is None else inference.due_ns
        remaining_ns = inference.task.remaining_ns
        return due_ns - (remaining_ns[job] if remaining_ns is not None else 0)

    def may_overtake(self, other: DnnTask, task: DnnTask) -> bool:
        """A later frame of `other` can precede a job of `task` only if its slack on arrival is less than the deadline
        of `task`, because no job of `task` has more slack than that.
        """
        slack_ns = self._deadline_ns(other) - (other.remaining_ns[0] if other.remaining_ns is not None else 0)
        return slack_ns < self._deadline_ns(task)

    def holds_back(self, first: Inference, second: Inference, now_ns: int) -> bool:
        """Only once the first one's slack is used up to the time that it takes, or, if that is unknown, to half of
        its deadline: until then the GPU does more work by running both.
        """
        key, other = self.key(first, 0), self.key(second, 0)
        if key >= other:
            return False
        remaining_ns = first.task.remaining_ns
        reserve_ns = self._deadline_ns(first.task) // 2 if remaining_ns is None else remaining_ns[0]
        return now_ns >= key - reserve_ns

    def _deadline_ns(self, task: DnnTask) -> int:
        return self.default_ns if task.deadline_ns is None else task.deadline_ns


#: By value of the parameter `policy`.
POLICIES: Mapping[str, Callable[[], Policy]] = {"fifo": Fifo, "priority": Priority, "edf": EarliestDeadlineFirst}


def make_policy(name: str) -> Policy:
    """Return the policy of that name, one of POLICIES. Raises ValueError for any other name."""
    if name not in POLICIES:
        raise ValueError(f"policy is '{name}'; allowed: {', '.join(POLICIES)}")
    return POLICIES[name]()
