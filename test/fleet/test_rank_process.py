"""What a rank does between two commands, with a simulated training that computes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.fleet import job_training, rank_process
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Busy, Command, Ready
from multi_dnn_ros.fleet.networks import load_trainable
from multi_dnn_ros.fleet.rank_process import LOOPBACK, Rank, RankSetup
from multi_dnn_ros.planning.batch_units import parse_unit
from multi_dnn_ros.training.trainable import Trainable


class SimulatedTraining:
    """saved: number of the last step of each checkpoint. stepped: called after each step."""

    def __init__(self, stepped: Callable[[int], None]) -> None:
        self.done, self.total = 0, 100
        self.losses: list[float] = []
        self.saved: list[int] = []
        self._stepped = stepped

    def step(self, flag: float) -> float:
        self.done += 1
        self.losses.append(1.0)
        self._stepped(self.done)
        return flag

    def save(self, path: Path) -> None:
        self.saved.append(self.done)


def test_a_rank_that_has_a_new_command_writes_no_checkpoint(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader may already be writing one: it begins without a message from the former leader."""
    supervisor_end, rank_end = Pipe()
    setup = RankSetup(
        job.model_copy(update={"checkpoint_every_s": 1e-9}), 0, parse_unit("cpu"), tmp_path, LOOPBACK, 0, "a"
    )
    rank = Rank(setup, rank_end)

    def stepped(done: int) -> None:
        if done == 2:
            supervisor_end.send(Command(2, (0, 10), (0, 1), stop=True))

    training = SimulatedTraining(stepped)
    monkeypatch.setattr(rank, "training", training)
    monkeypatch.setattr(rank, "_apply", lambda command: None)
    supervisor_end.send(Command(1, (1, 9)))
    rank.run()
    assert training.done == 3
    assert training.saved == [1, 2]


def test_a_rank_reports_that_it_is_busy_before_other_shares_and_checkpoints(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor would otherwise kill it while it compiles, or while the file system is slow."""
    supervisor_end, rank_end = Pipe()
    setup = RankSetup(
        job.model_copy(update={"checkpoint_every_s": 1e-9}), 0, parse_unit("cpu"), tmp_path, LOOPBACK, 0, "a"
    )
    rank = Rank(setup, rank_end)
    events: list[str] = []

    def stepped(done: int) -> None:
        while supervisor_end.poll():
            events.extend(["busy"] if isinstance(supervisor_end.recv(), Busy) else [])
        events.append(str(done))
        if done == 2:
            supervisor_end.send(Command(2, (5, 5), (0,)))
        elif done == 3:
            supervisor_end.send(Command(3, (5, 5), (0, 1)))
        elif done == 4:
            supervisor_end.send(Command(4, (5, 5), (0, 1), stop=True))

    training = SimulatedTraining(stepped)
    monkeypatch.setattr(rank, "training", training)
    monkeypatch.setattr(rank, "_apply", lambda command: None)
    supervisor_end.send(Command(1, (10, 0)))
    rank.run()
    assert training.saved == [1, 2]  # not after step 3, as the second command has arrived
    assert events == ["busy", "1", "busy", "2", "busy", "3", "busy", "4", "5"]  # the third command changes no shares


def test_a_rank_that_pauses_after_its_last_step_ends(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise wait for a turn without any step to do."""
    supervisor_end, rank_end = Pipe()
    rank = Rank(RankSetup(job, 0, parse_unit("cpu"), tmp_path, LOOPBACK, 0, "a"), rank_end)

    def stepped(done: int) -> None:
        if done == training.total - 1:
            supervisor_end.send(Command(2, (10,), (0,), pause=True))

    training = SimulatedTraining(stepped)
    finished: list[int] = []
    monkeypatch.setattr(rank, "training", training)
    monkeypatch.setattr(rank, "_apply", lambda command: None)
    monkeypatch.setattr(rank, "_finish", lambda training: finished.append(training.done))
    supervisor_end.send(Command(1, (10,)))
    rank.run()
    assert finished == [training.total]


def test_a_rank_builds_its_network_once(job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For reading the data in advance and for the first share; not if other ranks get the shares."""
    built: list[Trainable] = []

    def load(job: FleetJob) -> Trainable:
        built.append(load_trainable(job))
        return built[-1]

    for module in (rank_process, job_training):
        monkeypatch.setattr(module, "load_trainable", load)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    setup = RankSetup(job, 0, parse_unit("cpu:1"), tmp_path, LOOPBACK, 0, "a")
    supervisor_end, rank_end = Pipe()
    rank = Rank(setup, rank_end)
    rank._apply(Command(0, (), prepare=True))
    assert supervisor_end.recv() == Ready(0)
    rank._apply(Command(1, (10,)))
    assert rank.training is not None
    assert rank.training.step() == 0.0
    assert len(built) == 1
    other = Rank(setup, rank_end)
    other._apply(Command(0, (), prepare=True))
    network = weakref.ref(built.pop().network)
    other._apply(Command(1, (0, 10)))
    assert network() is None


@pytest.mark.parametrize("limit", ["join_limit_s", "busy_limit_s"])
def test_ranks_wait_for_each_other_longer_than_the_supervisor(
    limit: str, job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one writes a checkpoint for as long as it may: the others must not fail earlier, and be blamed."""
    waits: list[float] = []
    monkeypatch.setattr(rank_process, "TCPStore", lambda *given, **options: None)
    monkeypatch.setattr(rank_process, "PrefixStore", lambda *given: None)
    monkeypatch.setattr(
        torch.distributed, "init_process_group",
        lambda *given, **options: waits.append(options["timeout"].total_seconds()),
    )  # fmt: skip
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    slow = job.model_copy(update={limit: 10_000.0})
    Rank(RankSetup(slow, 0, parse_unit("cpu:1"), tmp_path, LOOPBACK, 0, "a"), Pipe()[1])._join_group([0, 1], "1")
    assert waits[0] > 10_000.0
