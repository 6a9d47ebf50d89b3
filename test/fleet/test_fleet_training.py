"""Real trainings by Ray on two CPU units give equal results (test/acceptance/test_fleet.py loses processes)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from multi_dnn_ros.fleet.controller import Fleet
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
from multi_dnn_ros.fleet.units import reserved_units


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
    assert len(fleet.jobs["wide"].state.losses) == 300
