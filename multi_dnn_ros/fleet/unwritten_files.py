"""States and checkpoints that could not be written: states are written later, and both are warned about."""

from __future__ import annotations

from collections.abc import Iterable

from multi_dnn_ros.common.log_throttle import LogThrottle
from multi_dnn_ros.fleet.running_job import RunningJob

#: Seconds between attempts to write a state that could not be written.
_SAVE_AGAIN_S = 10.0
#: Seconds between two warnings about the same lasting problem, such as a full disk.
_WARNING_S = 60.0


class UnwrittenFiles:
    """Of all jobs of a fleet."""

    def __init__(self) -> None:
        self._warnings = LogThrottle(_WARNING_S)
        self._save_again_at = 0.0

    def save_again(self, jobs: Iterable[RunningJob], seconds: float) -> list[str]:
        """Try again to write the states that could not be written. seconds: since the start. Returns lines to show."""
        is_time = seconds >= self._save_again_at
        if is_time:
            self._save_again_at = seconds + _SAVE_AGAIN_S
        lines = []
        for job in jobs:
            key = f"{job.name}/state"
            if job.unsaved and is_time:
                job.save()
            if not job.unsaved:
                if self._warnings.forget(key):
                    lines.append(f"{job.name}: its state can be written again")
            elif self._warnings.passes(key) is not None:
                lines.append(f"{job.name}: {job.unsaved}; its state is kept in memory, and written later")
        return lines

    def checkpoint_warning(self, job: RunningJob, text: str) -> str:
        """The line to show if a checkpoint could not be written; empty if there was one within the last minute."""
        more = self._warnings.passes(f"{job.name}/checkpoint")
        return "" if more is None else f"{job.name}: {text}; it continues, and will try again{more}"
