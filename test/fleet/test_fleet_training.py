"""Real trainings by Ray on two CPU units give equal results (test/acceptance/test_fleet.py loses processes)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.timeout(240)
def test_the_losses_hardly_depend_on_the_units(job: FleetJob, pool: UnitPool, tmp_path: Path) -> None:
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
    # On CPUs each process normalizes its own part of a batch, so the losses differ a little once it has two units.
    losses = fleet.jobs["a"].losses
    assert losses[0] == pytest.approx(alone[0], rel=0.02)
    assert losses == pytest.approx(alone, abs=0.5)
    assert (tmp_path / "fleet" / "a" / "a.safetensors").is_file()
    assert set(fleet.jobs["a"].state.scores) == {"top1", "top5"}


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
