"""The supervisor's state of one job, and the part of it that is kept when the command ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.fleet.exclusive_times import ExclusiveTimes
from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Paused, Report
from multi_dnn_ros.fleet.shares import TENTHS, Shares
from multi_dnn_ros.fleet.slowdown import Progress
from multi_dnn_ros.fleet.turn_plans import PlannedJob
from multi_dnn_ros.fleet.usable_units import usable_limits
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.training.checkpoint import differences

Status = Literal["waiting", "starting", "measured", "running", "finished", "failed", "cancelled"]


@dataclass
class JobState:
    """Kept in state.json in the folder of the job. alone_s: time of a step with the units for itself; 0: not measured
    yet. elapsed_s: running time without measurements. limits: maximum tenths per unit; empty: ten each. settings: see
    FleetJob; empty: not known. times: of steps while the job had its units for itself.
    """

    status: Status = "waiting"
    alone_s: float = 0.0
    elapsed_s: float = 0.0
    limits: Shares = ()
    units: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    text: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    times: ExclusiveTimes = field(default_factory=ExclusiveTimes)


def unit_keys(units: Sequence[Unit]) -> tuple[str, ...]:
    """The units of a fleet, as in JobState.units."""
    return tuple(f"{number}:{unit.name}" for number, unit in enumerate(units))


class RunningJob:
    """A job of the file. processes: None unless it is running. placed: whether a decision has given it shares. wait_s:
    planned time until its last step in which other jobs have their turns; None: jobs do not train in turns. unsaved:
    why the state could not be written; empty: it was written.
    """

    def __init__(self, job: FleetJob, folder: Path, units: tuple[str, ...], state: JobState | None = None) -> None:
        """state: replaces the state in the folder. Raises ValueError if state.json is invalid, or if the job has
        finished with other settings.
        """
        self.job = job
        self.folder = folder
        self.state = state if state is not None else _read(folder / "state.json")
        changed = differences(self.state.settings, job.settings) if self.state.settings else []
        if changed and self.state.status == "finished":
            raise ValueError(
                f"finished before with other settings: {'; '.join(changed)}. Use the same settings or another name, or "
                f"remove {folder}"
            )
        if changed:
            self.state.elapsed_s = 0.0
        if changed or self.state.units != units:  # times and limits differ
            self.state.alone_s, self.state.limits, self.state.units = 0.0, (TENTHS,) * len(units), units
            self.state.times = ExclusiveTimes()
        if self.state.status == "failed":  # tried again, with the memory that is free now
            self.state.limits = (TENTHS,) * len(units)
        self.state.settings = job.settings
        self.processes: JobProcesses | None = None
        self.report: Report | None = None
        self.paused: Paused | None = None
        self.step_s = 0.0
        self.placed = False
        self.wait_s: float | None = None
        self.losses: tuple[float, ...] = ()
        self.attempts = 0
        self.starts = 0
        self.done_at_start = -1
        self.unsaved = ""

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.state.status in ("finished", "failed", "cancelled")

    @property
    def shares(self) -> Shares:
        return self.processes.shares if self.processes is not None else (0,) * len(self.state.units)

    @property
    def limits(self) -> Shares:
        """The most tenths on each unit now: 0 without a process that has read the data."""
        if self.processes is None:
            return self.state.limits
        prepared = [self.processes.is_prepared(unit) for unit in range(len(self.state.limits))]
        return usable_limits(self.state.limits, prepared)

    @property
    def is_awaited(self) -> bool:
        """Whether decisions wait for this job if it has no step time with its present shares yet."""
        return self.processes is not None and (self.is_current or self.processes.timer.is_awaited)

    @property
    def trains(self) -> bool:
        """Whether the job is to train now, as far as turns are concerned."""
        return self.processes is not None and self.processes.has_turn

    @property
    def is_current(self) -> bool:
        """Whether the last report is for the shares in force or, without its turn, whether the job has paused."""
        if self.processes is None:
            return False
        if not self.processes.has_turn:
            return self.processes.is_paused
        return self.report is not None and self.report.number == self.processes.number

    @property
    def is_trained(self) -> bool:
        """Whether the last step is done, so that the job is being scored."""
        return self.report is not None and self.report.done >= self.report.total

    @property
    def measured_steps(self) -> int:
        """Steps from which the last report takes the step time; the first step after a command is not one of them."""
        return max(0, self.report.count - 1) if self.report is not None else 0

    @property
    def steps(self) -> tuple[int, int] | None:
        """(done, total), as far as known; None until there is a message from the processes."""
        known = [(each.done, each.total) for each in (self.report, self.paused) if each is not None]
        return max(known, default=None)

    @property
    def progress(self) -> Progress | None:
        """None until the number of steps and their time are known, and for a job that has finished while it was
        measured, so that no running time was counted.
        """
        if self.steps is None or not self.state.alone_s:
            return None
        done, total = self.steps
        if done >= total and not self.state.elapsed_s:
            return None
        if self.wait_s is not None:
            step_s = self.state.times.estimated_step_s(self.shares, self.state.alone_s)
            wait_s = self.wait_s if done < total else 0.0
            return Progress(done, total, self.state.elapsed_s, step_s, self.state.alone_s, wait_s)
        return Progress(done, total, self.state.elapsed_s, self.step_s, self.state.alone_s) if self.step_s else None

    def planned(self) -> PlannedJob:
        """The job for the plan of turns. Until its processes have sent a message, it has all of its steps to do."""
        done, total = self.steps or (0, self.job.steps or 0)
        return PlannedJob(
            self.shares if self.placed else (0,) * len(self.state.units), done, total, self.state.elapsed_s,
            self.state.alone_s, self.state.times, self.job.priority, ready=self.steps is not None,
            trains=self.placed and self.trains,
        )  # fmt: skip

    def save(self) -> None:
        """Write state.json atomically. If this fails, the file keeps its content, and `unsaved` says why: the training
        does not depend on it while the command runs.
        """
        path = self.folder / "state.json"
        try:
            write_json(path, asdict(self.state))
        except OSError as error:
            self.unsaved = f"{path} cannot be written ({summarize_error(error)})"
        else:
            self.unsaved = ""

    def figures(self) -> dict[str, Any]:
        """For the JSON report."""
        progress = self.progress
        return {
            "name": self.name,
            "status": self.state.status,
            "text": self.state.text,
            "steps": self.steps[0] if self.steps is not None else len(self.losses),
            "slow_down": progress.slow_down if progress is not None else None,
            "alone_step_s": self.state.alone_s,
            "scores": self.state.scores,
            "losses": list(self.losses),
        }


def _read(path: Path) -> JobState:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["limits"], content["units"] = tuple(content["limits"]), tuple(content["units"])
        content["times"] = ExclusiveTimes(**content.get("times", {}))
        return JobState(**content)
    except FileNotFoundError:
        return JobState()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: not the state of a job ({summarize_error(error)}); remove it") from None
