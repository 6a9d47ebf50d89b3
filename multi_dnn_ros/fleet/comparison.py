"""Trains the jobs of a file once under each policy, and compares how well they were served."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import write_json, write_text
from multi_dnn_ros.fleet.decisions import slow_down_points
from multi_dnn_ros.fleet.folder_lock import lock_folder
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
from multi_dnn_ros.fleet.launcher import RankMain
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.plot import Points
from multi_dnn_ros.fleet.policy_result import PolicyResult, columns
from multi_dnn_ros.fleet.rank_process import main
from multi_dnn_ros.fleet.running_job import JobState, RunningJob, unit_keys
from multi_dnn_ros.fleet.sharing import POLICIES, Policy
from multi_dnn_ros.fleet.slowdown import Progress
from multi_dnn_ros.fleet.supervisor import Supervisor, Watch
from multi_dnn_ros.planning.batch_units import Unit

_JOBS, _RESULT = "jobs.yaml", "result.json"


@dataclass(frozen=True)
class TrainedFleet:
    """The jobs of a file after training under one policy. decisions: as in the report of a fleet."""

    result: PolicyResult
    decisions: list[dict[str, Any]]

    @property
    def points(self) -> Mapping[str, Points]:
        """(minutes since the start, predicted slow-down) at each decision, by job."""
        return slow_down_points(self.decisions)

    def figures(self) -> dict[str, Any]:
        """For the JSON report."""
        return {**self.result.figures(), "slow_downs": self.result.slow_downs, "decisions": self.decisions}


class PolicyComparison:
    """folder: gets the folder `alone`, in which each job is measured alone, and a folder per policy.

    A policy whose jobs have all finished is not trained again. One that was interrupted starts over, because its total
    time and the use of the units must come from one run. The same holds for the measurements alone. watch: that of the
    supervisors.
    """

    def __init__(
        self,
        file: JobsFile,
        units: Sequence[Unit],
        folder: Path,
        *,
        watch: Watch = lambda supervisor, line: None,
        rank_main: RankMain = main,
    ) -> None:
        self._file = file
        # Their networks stay in the folders of the runs.
        self._jobs = tuple(job.model_copy(update={"output": None}) for job in file.jobs)
        self._units = tuple(units)
        self._folder = folder
        self._watch = watch
        self._rank_main = rank_main

    def run(
        self,
        progress: Callable[[str], None] = lambda text: None,
        completed: Callable[[Mapping[Policy, TrainedFleet]], None] = lambda trained: None,
    ) -> dict[Policy, TrainedFleet]:
        """Measure each job alone, then train all under each policy. progress: called with one line per step.
        completed: called after each policy with the results so far.

        Raises CommandError if a job fails, if another fleet or comparison uses the folder, or if the folder has files
        of something else; OSError if the folder cannot be written.
        """
        with lock_folder(self._folder):  # the supervisors lock its folders only after old files were removed
            states = self._alone(progress)
            trained: dict[Policy, TrainedFleet] = {}
            for policy in POLICIES:
                trained[policy] = self._train(policy, states, progress)
                completed(trained)
            return trained

    def _alone(self, progress: Callable[[str], None]) -> dict[str, JobState]:
        """The state of each job after its step alone was timed."""
        folder = self._folder / "alone"
        states = {job.name: self._state(folder, job) for job in self._jobs}
        if all(state.alone_s for state in states.values()):
            progress("times of the jobs alone: measured before")
            return states
        progress("measuring each job alone")
        path = self._write_jobs(folder, "fair", [job.model_copy(update={"start_after_s": 0.0}) for job in self._jobs])
        ending = False

        def watch(supervisor: Supervisor, line: str) -> None:
            self._watch(supervisor, line)
            nonlocal ending
            done = all(job.state.alone_s or job.has_ended for job in supervisor.jobs.values())
            # The time of a job that is being measured is not complete. Raised once only: the supervisor also shows
            # lines while it ends, and must not be interrupted then.
            if done and supervisor.measuring is None and not ending:
                ending = True
                raise _Measured

        supervisor = Supervisor(path, LocalLauncher(self._units), folder, watch=watch, rank_main=self._rank_main)
        with contextlib.suppress(_Measured):
            supervisor.run()
        self._check("alone", supervisor, lambda state: bool(state.alone_s))
        return {name: job.state for name, job in supervisor.jobs.items()}

    def _state(self, folder: Path, job: FleetJob) -> JobState:
        """The state that an earlier measurement of the same job on the same units left; raises CommandError."""
        try:
            found = RunningJob(job, folder / job.name, unit_keys(self._units))
        except ValueError as error:
            raise CommandError(str(error)) from None
        return found.state

    def _train(self, policy: Policy, states: Mapping[str, JobState], progress: Callable[[str], None]) -> TrainedFleet:
        folder = self._folder / policy.replace(" ", "_")
        identity = {
            "jobs_file": self._file.model_dump(mode="json"),
            "units": list(unit_keys(self._units)),
            "alone_s": {name: state.alone_s for name, state in states.items()},
        }
        done = folder / _RESULT
        if (found := _read(done, identity)) is not None:
            progress(f"policy {policy}: trained before, see {folder}")
            return found
        progress(f"policy {policy}")
        path = self._write_jobs(folder, policy, self._jobs)
        for job in self._jobs:
            state = states[job.name]
            (folder / job.name).mkdir()
            write_json(
                folder / job.name / "state.json",
                asdict(JobState(alone_s=state.alone_s, limits=state.limits, units=state.units, times=state.times)),
            )
        launcher = LocalLauncher(self._units)
        supervisor = Supervisor(path, launcher, folder, watch=self._watch, rank_main=self._rank_main)
        supervisor.run()
        self._check(f"policy {policy}", supervisor, lambda state: state.status == "finished")
        trained = _trained(policy, supervisor, supervisor.seconds, launcher.take_use())
        write_json(done, {**identity, "result": asdict(trained.result), "decisions": trained.decisions})
        return trained

    def _write_jobs(self, folder: Path, policy: Policy, jobs: Sequence[FleetJob]) -> Path:
        """Remove the files of an earlier run from the folder of a run, and write its jobs file.

        Raises CommandError if the folder has files but no jobs file, so that no comparison has written it.
        """
        path = folder / _JOBS
        if folder.exists():
            old = [entry for entry in folder.iterdir() if entry != path]
            if old and not path.exists():
                raise CommandError(f"{folder} was not written by --compare; use another --folder")
            # The result first: it stands for complete files. The jobs file stays: if the removal is interrupted, it
            # shows the next run that it may continue.
            for entry in sorted(old, key=lambda entry: entry.name != _RESULT):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        content = self._file.model_copy(update={"policy": policy, "jobs": tuple(jobs)})
        write_text(path, yaml.safe_dump(content.model_dump(mode="json"), sort_keys=False))
        return path

    def _check(self, what: str, supervisor: Supervisor, complete: Callable[[JobState], bool]) -> None:
        """Raise CommandError, which names the jobs for which `complete` is False, unless there are none.

        what: the run, for the message.
        """
        texts = {"finished": "too short to be measured"}
        problems = [
            f"{name}: {job.state.text or texts.get(job.state.status, job.state.status)}"
            for name, job in supervisor.jobs.items()
            if not complete(job.state)
        ]
        if problems:
            raise CommandError(
                f"{what}: a comparison needs all jobs, but {'; '.join(problems)} (logs: {supervisor.folder})"
            )


class _Measured(Exception):
    """All jobs have been measured alone."""


def _trained(policy: Policy, supervisor: Supervisor, end_s: float, last_use: Sequence[float]) -> TrainedFleet:
    """The result of a run whose jobs have all finished.

    end_s: when the last job ended, in seconds since the start. last_use: use (0..1) of each unit since the last
    decision.
    """
    entries = supervisor.decisions.entries
    begin_s = entries[0]["seconds"]
    periods = [(entry["seconds"], entry["use"]) for entry in entries[1:]] + [(end_s, last_use)]
    used_s, before_s = 0.0, begin_s
    for until_s, use in periods:
        used_s += (until_s - before_s) * sum(use) / len(use)
        before_s = until_s
    slow_downs = {}
    for name, job in supervisor.jobs.items():
        # Not job.progress: a job that was started again after its last step has finished without a report.
        steps = len(job.losses)
        slow_downs[name] = Progress(steps, steps, job.state.elapsed_s, 0.0, job.state.alone_s).slow_down
    changes = [entry for entry in entries if entry["jobs"] and entry["reason"] != "start"]
    result = PolicyResult(
        policy,
        slow_downs,
        used_s / max(1e-9, end_s - begin_s),
        end_s - begin_s,
        sum(len(entry["jobs"]) for entry in changes),
        sum(len(entry["jobs"]) for entry in changes if entry["reason"] == "reverted"),
    )
    return TrainedFleet(result, entries)


def _read(path: Path, identity: Mapping[str, Any]) -> TrainedFleet | None:
    """The result that an earlier run wrote to `path`; None if there is none, or if its jobs, units or times differ.

    identity: jobs, units and times alone of this run.

    Raises CommandError for a damaged file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if any(content[key] != value for key, value in identity.items()):
            return None
        return TrainedFleet(PolicyResult(**content["result"]), content["decisions"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CommandError(f"{path}: not a result of --compare ({summarize_error(error)}); remove it") from None


def comparison_table(trained: Mapping[Policy, TrainedFleet]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that the command prints."""
    return columns("total s"), [each.result.cells(f"{each.result.total_s:.0f}") for each in trained.values()]
