"""Shows a fleet: a table that is redrawn on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from multi_dnn_ros.common.reporting import table

if TYPE_CHECKING:
    from multi_dnn_ros.fleet.running_job import RunningJob
    from multi_dnn_ros.fleet.supervisor import Supervisor

_REDRAW_S = 1.0
#: Number of the latest lines that are shown below the table.
_LINES = 8
_HOME_AND_CLEAR = "\x1b[H\x1b[J"


class Display:
    """The `watch` of a supervisor, or of several in turn. output: a terminal gets a table, anything else one line per
    event.
    """

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output if output is not None else sys.stderr
        self._live = self._output.isatty()
        self._lines: list[str] = []
        self._drawn = 0.0
        self._title = ""

    def set_title(self, text: str) -> None:
        """What runs from now on: shown above the table, or as a line."""
        self._title = text
        self._lines, self._drawn = [], 0.0
        if not self._live:
            print(text, file=self._output, flush=True)

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if not self._live:
            if line:
                print(f"{supervisor.seconds:8.1f} s  {line}", file=self._output, flush=True)
            return
        if line:
            self._lines = [*self._lines, f"{supervisor.seconds:8.1f} s  {line}"][-_LINES:]
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_S:
            self._drawn = now
            title = [self._title] if self._title else []
            text = "\n".join((*title, fleet_table(supervisor), *self._lines))
            print(f"{_HOME_AND_CLEAR}{text}", file=self._output, flush=True)


def _status(job: RunningJob) -> str:
    if job.state.status == "running" and job.placed and not job.trains:
        return "paused"
    if job.state.status == "starting" and job.processes is not None and job.processes.reading:
        return "reading data"
    return job.state.status


def fleet_table(supervisor: Supervisor) -> str:
    """State of all jobs, and the use of the units in the last period."""
    rows = []
    for name, job in supervisor.jobs.items():
        progress, report = job.progress, job.report
        rows.append([
            name,
            _status(job),
            f"{report.done}/{report.total}" if report is not None else "",
            f"{progress.slow_down:.2f}" if progress is not None else "",
            " ".join(map(str, job.shares)) if job.processes is not None else "",
            f"{job.job.global_batch / job.step_s:.1f}" if job.step_s and job.trains else "",
            f"{progress.remaining_s:.0f} s" if progress is not None and job.processes is not None else "",
            f"{report.loss:.4g}" if report is not None else "",
        ])  # fmt: skip
    header = ["job", "status", "steps", "slow-down", "tenths per unit", "images/s", "time left", "loss"]
    units = ", ".join(
        f"{name} {use:.0%}" for name, use in zip(supervisor.unit_names, supervisor.decisions.use, strict=True)
    )
    return f"{table(header, rows)}\nuse of the units: {units}"
