"""Slow-down of a job: predicted completion time, relative to its completion time with the units for itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """done, total: steps so far, and steps of the whole job. elapsed_s: running time so far, without the measurement of
    the job itself and without pauses while others were measured. step_s: time of one step now. alone_s: time of one
    step with the units for itself. wait_s: planned time until the last step in which other jobs have their turns.
    """

    done: int
    total: int
    elapsed_s: float
    step_s: float
    alone_s: float
    wait_s: float = 0.0

    @property
    def remaining_s(self) -> float:
        """Predicted time to the last step."""
        return (self.total - self.done) * self.step_s + self.wait_s

    @property
    def slow_down(self) -> float:
        """Predicted completion time now / completion time alone; 1: as fast as alone."""
        return (self.elapsed_s + self.remaining_s) / (self.total * self.alone_s)

    @property
    def remaining_slow_down(self) -> float:
        """The part of the slow-down that is in proportion to the present step time."""
        return self.remaining_s / (self.total * self.alone_s)
