"""What a rank does between two commands, with a simulated training that computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

import pytest

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command
from multi_dnn_ros.fleet.rank_process import LOOPBACK, Rank, RankSetup
from multi_dnn_ros.planning.batch_units import parse_unit


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
