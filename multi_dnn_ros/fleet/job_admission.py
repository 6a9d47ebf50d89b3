"""Jobs of the file that the fleet does not know yet, with the states in their folders."""

from __future__ import annotations

from pathlib import Path

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.running_job import JobState, RunningJob


def admit_job(job: FleetJob, folder: Path, units: tuple[str, ...]) -> tuple[RunningJob, str]:
    """A job that waits for its start, has finished before, or fails because its folder cannot be used. folder: the
    job's. units: those of the fleet, as in JobState.units.

    Returns the job, and a line to show or an empty one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = RunningJob(job, folder, units)
    except (ValueError, OSError) as error:  # nothing in the folder is replaced
        return RunningJob(job, folder, units, JobState("failed", text=str(error))), f"{job.name}: failed: {error}"
    if found.state.status == "finished":
        return found, f"{job.name}: finished before, see {folder}"
    if found.state.status == "failed":
        found.state.text = ""  # the user has run the command again
    found.state.status = "waiting"
    return found, ""
