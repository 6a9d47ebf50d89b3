"""The ranks of one job: shares change between steps, and change no result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from failing_ranks import narrow

from multi_dnn_ros.fleet.job_processes import JobProcesses, wait_for_messages
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.messages import Ended, Failed, Message, Paused, Ready, Report
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
_PATIENCE_S = 240.0
#: Steps during which the CPU times of ranks are compared, and first steps whose losses are compared with one process.
_STEPS, _COMPARED = 40, 150


@pytest.fixture
def job(job: FleetJob) -> FleetJob:
    """A job that does not end during the tests. In float64 and with a low learning rate, because training amplifies
    rounding, see test_fleet_cluster.
    """
    changes = {"model": "torchvision:shufflenet_v2_x0_5", "precision": "fp64", "steps": 100_000, "lr": 2e-5}
    return job.model_copy(update=changes)


@pytest.fixture
def ranks(job: FleetJob, tmp_path: Path) -> Iterator[JobProcesses]:
    processes = JobProcesses(job, LocalLauncher(UNITS), tmp_path, "a")
    yield processes
    processes.kill()


def wait_for(ranks: JobProcesses, wanted: Callable[[Message], bool]) -> Message:
    """The first message of this kind."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        wait_for_messages([ranks], 0.1)
        for _, message in ranks.receive():
            if wanted(message):
                return message
            assert not isinstance(message, Failed), message.text
    raise AssertionError("no such message")


@pytest.mark.long
def test_shares_change_no_loss_and_a_rank_without_a_share_uses_no_cpu(
    ranks: JobProcesses, job: FleetJob, tmp_path: Path
) -> None:
    for shares in ((10, 0), (5, 5), (2, 8), (0, 10), (7, 3)):
        ranks.send(shares)
        report = wait_for(ranks, lambda m: isinstance(m, Report) and m.number == ranks.number)
        assert isinstance(report, Report)
        if 0 in shares:
            wait_for(ranks, lambda m: isinstance(m, Report))  # the rank that has left frees its network
            before = [cpu_s(pid) for pid in ranks.pids]
            wait_for(ranks, lambda m, first=report.done: isinstance(m, Report) and m.done >= first + _STEPS)
            used = [cpu_s(pid) - start for pid, start in zip(ranks.pids, before, strict=True)]
            assert used[shares.index(0)] < 0.1 * used[shares.index(10)]
    ranks.send(ranks.shares, stop=True)
    ended = wait_for(ranks, lambda m: isinstance(m, Ended))
    losses = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["losses"]
    assert ended == Ended(False, len(losses))
    alone = JobTraining(job, torch.device("cpu"))
    alone.take((10,), 0)
    while alone.done < min(_COMPARED, len(losses)):
        alone.step()
    assert losses[:_COMPARED] == pytest.approx(alone.losses, rel=1e-4)


def test_a_job_pauses_and_the_end_of_a_rank_is_reported(job: FleetJob, tmp_path: Path) -> None:
    small = job.model_copy(update={"model": "torchvision:squeezenet1_1", "precision": "fp32"})
    ranks = JobProcesses(small, LocalLauncher(UNITS), tmp_path, "a", narrow)
    try:
        check_pause_and_end(ranks)
    finally:
        ranks.kill()


def check_pause_and_end(ranks: JobProcesses) -> None:
    ranks.send((5, 5))
    wait_for(ranks, lambda m: isinstance(m, Report))
    ranks.send((5, 5), pause=True)
    wait_for(ranks, lambda m: isinstance(m, Paused) and m.number == 2)
    psutil.Process(ranks.pids[1]).send_signal(signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    found: list[tuple[int, Message]] = []
    while not found and time.monotonic() < deadline:
        wait_for_messages([ranks], 0.1)
        found = [each for each in ranks.receive() if not isinstance(each[1], Ready)]
    assert found == [(1, Failed("was killed by SIGKILL (the kernel does this when memory runs out)", False, False))]


def test_ranks_read_the_data_before_they_have_a_share(job: FleetJob, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ranks = JobProcesses(job.model_copy(update={"data": f"cifar10:{missing}"}), LocalLauncher(UNITS), tmp_path, "a")
    try:
        found: list[tuple[int, Message]] = []
        deadline = time.monotonic() + _PATIENCE_S
        while len(found) < len(UNITS) and time.monotonic() < deadline:
            wait_for_messages([ranks], 0.1)
            found += ranks.receive()
        while ranks.connections and time.monotonic() < deadline:  # the processes end; nothing more is reported
            wait_for_messages([ranks], 0.1)
            found += ranks.receive()
    finally:
        ranks.kill()
    assert sorted(unit for unit, _ in found) == [0, 1]
    for _, message in found:
        assert isinstance(message, Failed)
        assert message.expected
        assert str(missing) in message.text


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
