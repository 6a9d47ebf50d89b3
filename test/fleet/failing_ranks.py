"""Ranks with faults, which the supervisor runs in place of its own."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch

from multi_dnn_ros.fleet import rank_process
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.shares import Shares

#: Most tenths that fit unit 0 in these tests.
ROOM = 5


def short_of_memory(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """Job `b` runs out of memory on unit 0 with more than ROOM tenths; other jobs are as usual."""
    if setup.job.name == "b" and setup.rank == 0:
        take = JobTraining.take

        def checked(self: JobTraining, shares: Shares, rank: int) -> None:
            if shares[0] > ROOM:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            take(self, shares, rank)

        JobTraining.take = checked  # type: ignore[method-assign]
    rank_process.main(setup, connection)
