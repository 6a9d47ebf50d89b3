"""What a fleet makes of the state that a former one has left in the folder of a job, with simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from simulated_launcher import SimulatedLauncher

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
_PATIENCE_S = 60.0


def write(path: Path, *jobs: FleetJob) -> Path:
    """A file of jobs, replaced as an editor does."""
    content = {"jobs": [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content))
    new.replace(path)
    return path


class Watch:
    """Collects lines, and ends the fleet when the test says so. ends: called after each turn."""

    def __init__(self, ends: Callable[[Supervisor], bool] = lambda supervisor: False) -> None:
        self.lines: list[str] = []
        self._ends = ends

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if line:
            self.lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, self.lines
        if self._ends(supervisor):
            raise KeyboardInterrupt


def test_an_added_job_with_an_invalid_state_fails_alone(job: FleetJob, tmp_path: Path) -> None:
    path, b = write(tmp_path / "jobs.yaml", job), job.model_copy(update={"name": "b"})
    state = tmp_path / "runs/b/state.json"

    def ends(supervisor: Supervisor) -> bool:
        if supervisor.jobs["a"].placed and not state.exists():
            state.parent.mkdir(parents=True)
            state.write_text("{")
            write(path, job, b)
        return "b" in supervisor.jobs

    watch = Watch(ends)
    supervisor = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert supervisor.jobs["b"].memory.status == "failed"
    assert any(line.startswith(f"b: failed: {state}: not the state of a job") for line in watch.lines)
    assert supervisor.jobs["a"].memory.status == "waiting"
    assert state.read_text() == "{"
