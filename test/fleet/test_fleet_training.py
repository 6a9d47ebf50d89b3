"""Real trainings by Ray on two CPU units: the result does not depend on units, and lost processes are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_worker import started

from multi_dnn_ros.fleet.controller import Fleet
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
from multi_dnn_ros.fleet.units import UnitPool, reserved_units


@pytest.fixture(scope="module")
def pool() -> Iterator[UnitPool]:
    """Two units of one thread."""
    with reserved_units("local", 2, 1) as pool:
        yield pool


def worker_processes() -> set[int]:
    """The processes of all jobs."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if "JobWorker" in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:  # it has just ended
            continue
    return found


@pytest.mark.timeout(240)
def test_the_losses_do_not_depend_on_the_units(job: FleetJob, pool: UnitPool, tmp_path: Path) -> None:
    """The job is measured on one unit, and then trains on both, from its checkpoint.

    Its images are large, so that it does not end before the second process has been started.
    """
    job = job.model_copy(update={"size": (160, 160), "steps": 24})
    file = JobsFile(jobs=(job,))
    fleet = Fleet(file, "even", pool, tmp_path / "fleet", lambda fleet, line: None)
    assert asyncio.run(fleet.run()) is True
    assert [0, 1] in [decision["training"].get("a") for decision in fleet.decisions]
    (tmp_path / "alone").mkdir()
    alone = started(job, tmp_path / "alone").train(24).losses
    # The order of summation changes with the units, and training amplifies the differences of rounding.
    assert fleet.jobs["a"].losses == pytest.approx(alone, rel=0.02)
    assert (tmp_path / "fleet" / "a" / "a.safetensors").is_file()
    assert set(fleet.jobs["a"].state.scores) == {"top1", "top5"}


@pytest.mark.timeout(240)
def test_a_killed_process_and_a_job_that_raises_do_not_disturb_the_others(
    job: FleetJob, pool: UnitPool, tmp_path: Path
) -> None:
    changes = {"model": "torchvision:squeezenet1_1", "checkpoint_every_s": 0.2, "steps": 150}
    job = job.model_copy(update=changes)
    bad = job.model_copy(update={"name": "bad", "data": f"classes:{tmp_path}/none"})
    file = JobsFile(jobs=(job, job.model_copy(update={"name": "b"}), bad), period_s=2.0)
    lines: list[str] = []
    killed: list[int] = []

    def watch(fleet: Fleet, line: str) -> None:
        lines.append(line)
        has_checkpoints = all((tmp_path / name / "checkpoint.pt").exists() for name in "ab")
        if not killed and has_checkpoints and fleet.jobs["bad"].has_ended:
            killed.extend(sorted(worker_processes())[:1])
            os.kill(killed[0], signal.SIGKILL)

    fleet = Fleet(file, "fair", pool, tmp_path, watch)
    assert asyncio.run(fleet.run()) is False
    assert len(killed) == 1
    assert {name: each.state.status for name, each in fleet.jobs.items()} == {
        "a": "finished", "b": "finished", "bad": "failed",
    }  # fmt: skip
    assert "none" in fleet.jobs["bad"].state.text
    assert "DatasetError" in (tmp_path / "bad" / "error.log").read_text()
    assert [line for line in lines if "a process has ended unexpectedly; it continues from its last" in line]
    for name in "ab":
        assert len(fleet.jobs[name].losses) == 150
        assert (tmp_path / name / f"{name}.safetensors").is_file()
    assert not worker_processes()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_lost_host_of_a_cluster_is_replaced(job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two simulated hosts with a unit each; a job trains on both."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    hosts = [cluster.add_node(num_cpus=1)]
    job = job.model_copy(
        update={"model": "torchvision:squeezenet1_1", "steps": 300, "checkpoint_every_s": 0.2, "name": "wide"}
    )
    lost_at: list[int] = []

    def watch(fleet: Fleet, line: str) -> None:
        on_both = fleet.jobs["wide"].has_turn and fleet.jobs["wide"].units == (0, 1)
        if not lost_at and on_both and fleet.jobs["wide"].state.done > 40:
            lost_at.append(fleet.jobs["wide"].state.done)
            cluster.remove_node(hosts.pop(), allow_graceful=False)
        elif lost_at and not hosts and "ended unexpectedly" in line:
            hosts.append(cluster.add_node(num_cpus=1))

    try:
        with reserved_units(cluster.address, 2, 1) as pool:
            fleet = Fleet(JobsFile(jobs=(job,)), "even", pool, tmp_path, watch)
            assert asyncio.run(fleet.run()) is True
    finally:
        cluster.shutdown()
    assert lost_at
    assert hosts
    assert len(fleet.jobs["wide"].losses) == 300
