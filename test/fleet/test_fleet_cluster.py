"""A fleet on a Ray cluster of two hosts, both on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from failing_ranks import lost_before_sending

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.ray_cluster import connected
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.ray_launcher import ray_launcher
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
_PATIENCE_S = 240.0
#: First steps whose losses are compared with those of one process.
_COMPARED = 150


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose first host has one core, like each host that is added."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default 15: while other tests run, the ranks would hardly run
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for the modules of tests
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def job(job: FleetJob) -> FleetJob:
    """A job that does not end before the test stops it. In float64 and with a low learning rate, because training
    amplifies rounding: at 2e-4 the losses differ by 0.2 % after 85 steps.
    """
    changes = {"model": "torchvision:shufflenet_v2_x0_5", "precision": "fp64", "steps": 100_000, "lr": 2e-5}
    return job.model_copy(update={**changes, "checkpoint_every_s": 0.5})


def write(path: Path, *jobs: FleetJob) -> Path:
    written = [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]
    path.write_text(yaml.safe_dump({"period_s": 2.0, "jobs": written}))
    return path


class Events:
    """Kills a rank on the unit of the second host, then this host, lets the host return, and stops the fleet when the
    unit has been used again.

    Two jobs, so that one of them always uses this unit while it can be used.
    """

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.lines: list[str] = []
        self.killed = ""
        self.unit = -1
        self._cluster, self._folder = cluster, folder
        self._host = cluster.add_node(num_cpus=1)
        self._done = 0
        self._used_again: tuple[RunningJob, int] | None = None  # a job, and the number of its command
        self._deadline = time.monotonic() + _PATIENCE_S

    def find_unit(self, ray: Any) -> None:
        """Ray decides which unit is on which host."""
        (group,) = ray.util.placement_group_table().values()
        (self.unit,) = [unit for unit, host in group["bundles_to_node_id"].items() if host == self._host.node_id]

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        assert time.monotonic() < self._deadline, self.lines
        if line:
            self.lines.append(line)
            print(f"{supervisor.seconds:.1f} s {self._done} {line}")
        jobs = list(supervisor.jobs.values())
        if not jobs or not all(job.placed and job.state.status == "running" for job in jobs):
            return
        # Not `is_current`: on a slow machine, each report may come with a decision, which makes it outdated at once.
        on_unit = [job for job in jobs if job.shares[self.unit] and job.report is not None]
        if self._done == 0 and on_unit and (self._folder / on_unit[0].name / "checkpoint.pt").is_file():
            self.killed = on_unit[0].name
            assert on_unit[0].processes is not None
            os.kill(on_unit[0].processes.pids[self.unit], signal.SIGKILL)
        elif self._done == 1 and on_unit and supervisor.jobs[self.killed].starts == 2:
            self._cluster.remove_node(self._host, allow_graceful=False)
        elif self._done == 2 and not any(job.shares[self.unit] for job in jobs):
            self._cluster.add_node(num_cpus=1)
        elif self._done == 3:
            self._stop_if_used_again(jobs)
            return
        else:
            return
        self._done += 1

    def _stop_if_used_again(self, jobs: Sequence[RunningJob]) -> None:
        """A change that does not help is reverted in the turn in which its first report arrives."""
        if self._used_again is None:
            users = [(job, job.processes.number) for job in jobs if job.processes and job.shares[self.unit]]
            self._used_again = users[0] if users else None
            return
        job, number = self._used_again
        if job.report is not None and job.report.number >= number:
            raise KeyboardInterrupt


@pytest.mark.long
@pytest.mark.timeout(400)  # the processes of two hosts import PyTorch and Ray
def test_a_killed_rank_and_a_lost_host_change_no_loss(cluster: Any, job: FleetJob, tmp_path: Path) -> None:
    jobs = job, job.model_copy(update={"name": "b", "seed": 1})
    events = Events(cluster, tmp_path / "runs")
    with connected(cluster.address) as ray, ray_launcher(ray, UNITS, tmp_path / "runs") as launcher:
        events.find_unit(ray)
        supervisor = Supervisor(write(tmp_path / "jobs.yaml", *jobs), launcher, tmp_path / "runs", watch=events)
        with pytest.raises(KeyboardInterrupt):
            supervisor.run()
    text = "\n".join(events.lines)
    assert f"{events.killed}: unit {events.unit} (cpu:1 on " in text
    assert "was killed by SIGKILL" in text
    assert "was lost: " in text
    assert f"continues from the last checkpoint without unit {events.unit} (cpu:1 on " in text
    assert "can be used again" in text
    assert all(job.state.status != "failed" for job in supervisor.jobs.values()), text
    for each in jobs:
        state = torch.load(tmp_path / "runs" / each.name / "checkpoint.pt", weights_only=True)
        alone = JobTraining(each, torch.device("cpu"))
        alone.take((10,), 0)
        while alone.done < min(_COMPARED, state["done"]):
            alone.step()
        assert len(state["losses"]) == state["done"]
        assert state["losses"][:_COMPARED] == pytest.approx(alone.losses, rel=1e-4)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_whose_first_rank_is_lost_before_it_sends_the_state_restarts_at_once(
    cluster: Any, job: FleetJob, tmp_path: Path
) -> None:
    """Its host is lost. The rank has no share any more; the one that joins waits for the state of the job."""
    host = cluster.add_node(num_cpus=1)
    folder = tmp_path / "runs" / job.name
    lines: list[str] = []
    lost_at: list[float] = []

    def watch(supervisor: Supervisor, line: str) -> None:
        assert supervisor.seconds < _PATIENCE_S, lines
        lines.extend([line] if line else [])
        a = supervisor.jobs[job.name] if supervisor.jobs else None
        if a is None or a.processes is None or not a.placed:
            return
        if (folder / "done").exists() and not lost_at:
            lost_at.append(supervisor.seconds)
            cluster.remove_node(host, allow_graceful=False)
        elif a.is_current and a.starts == 1 and not (folder / "hang").exists():
            on_host = tuple(10 if each == unit else 0 for each in range(len(UNITS)))
            if a.shares == on_host:
                (folder / "hang").touch()
            a.processes.send(on_host[::-1] if a.shares == on_host else on_host)
        elif a.starts == 2 and a.is_current:
            lost_at.append(supervisor.seconds)
            raise KeyboardInterrupt

    with connected(cluster.address) as ray, ray_launcher(ray, UNITS, tmp_path / "runs") as launcher:
        (group,) = ray.util.placement_group_table().values()
        (unit,) = [each for each, node in group["bundles_to_node_id"].items() if node == host.node_id]
        path = write(tmp_path / "jobs.yaml", job)
        supervisor = Supervisor(path, launcher, tmp_path / "runs", watch=watch, rank_main=lost_before_sending)
        with pytest.raises(KeyboardInterrupt):
            supervisor.run()
    assert any(f"continues from the last checkpoint without unit {unit} (cpu:1 on " in line for line in lines), lines
    assert lost_at[1] - lost_at[0] < job.join_limit_s / 2


@pytest.mark.long
def test_the_command_runs_on_a_local_cluster(job: FleetJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "jobs.yaml", job.model_copy(update={"steps": 12}))
    output, plot = tmp_path / "out.json", tmp_path / "plot.png"
    command = ["fleet", str(path), "--cluster", "--folder", str(tmp_path / "runs")]
    assert main([*command, "--units", "cpu:1,cpu:1", "--output", str(output), "--plot", str(plot)]) == 0
    printed = capsys.readouterr()
    assert "| a " in printed.out
    assert "use of the units: cpu:1 on " in printed.out
    (result,) = json.loads(output.read_text())["jobs"]
    assert result["status"] == "finished"
    assert len(result["losses"]) == 12
    assert plot.stat().st_size > 1000
    assert sorted(each.name for each in (tmp_path / "runs").iterdir()) == [".lock", "a"]

    assert main([*command, "--units", "cpu:999"]) == 1
    assert "no host has 999 CPUs left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--cluster", "127.0.0.1:1"], 1, "the Ray cluster 127.0.0.1:1 cannot be reached: [Errno 111]"),
        (["--cluster", "somewhere"], 2, "--cluster is 'somewhere'; expected HOST:PORT"),
        (["--cluster", "auto", "--measure", "times.json"], 2, "--cluster is for training"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    options: list[str], code: int, text: str, job: FleetJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "jobs.yaml", job)
    assert main(["fleet", str(path), *options]) == code
    assert text in capsys.readouterr().err


def test_a_missing_extra_is_named(
    job: FleetJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["fleet", str(write(tmp_path / "jobs.yaml", job)), "--cluster"]) != 0
    assert 'pip install "multi_dnn_ros[cluster]"' in capsys.readouterr().err
