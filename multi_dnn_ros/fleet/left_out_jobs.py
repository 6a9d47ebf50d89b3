"""The jobs without which the shares of the others are decided, because they join units for long and may hang."""

from __future__ import annotations

from collections.abc import Iterable

from multi_dnn_ros.fleet.report_timer import AWAITED_S
from multi_dnn_ros.fleet.running_job import RunningJob


class LeftOutJobs:
    """names: of the jobs that are left out until they make steps again."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def update(self, jobs: Iterable[RunningJob]) -> tuple[bool, list[str]]:
        """Find the jobs to leave out among those that have processes. Returns whether they have changed, and a line
        about each new one.
        """
        waited_for = {job.name: job for job in jobs if job.placed and not job.is_trained and not job.is_awaited}
        before, self.names = self.names, set(waited_for)
        lines = []
        for name in sorted(self.names - before):
            processes = waited_for[name].processes
            assert processes is not None
            lines.append(
                f"{name}: {processes.timer.activity} takes longer than {AWAITED_S:g} s; until then, the shares of the "
                "other jobs are decided without this job"
            )
        return self.names != before, lines
