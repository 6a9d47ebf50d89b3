"""Main functions of ranks with faults, or without training, for the supervisor to run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import narrow_squeezenet
import torch

from multi_dnn_ros.fleet import rank_process
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.messages import Busy, Command, Ended, Paused, Ready, Report
from multi_dnn_ros.fleet.shares import Shares

#: Maximum number of tenths that fit on unit 0 in these tests.
ROOM = 5


def narrow(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """Without faults; SqueezeNet is small."""
    narrow_squeezenet.install()
    rank_process.main(setup, connection)


def short_of_memory(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """Job `b` runs out of memory on unit 0 with more than ROOM tenths; other jobs as with `narrow`."""
    if setup.job.name == "b" and setup.rank == 0:
        take = JobTraining.take

        def checked(self: JobTraining, shares: Shares, rank: int) -> None:
            if shares[0] > ROOM:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            take(self, shares, rank)

        JobTraining.take = checked  # type: ignore[method-assign]
    narrow(setup, connection)


def without_training(setup: rank_process.RankSetup, connection: Connection[Any, Any], busy_s: float = 0.0) -> None:
    """The first active rank reports one step after the other, and writes an empty checkpoint when it is stopped.

    busy_s: before its steps it says that it is busy, and waits so long.
    """

    def run(self: rank_process.Rank) -> None:
        command: Command = connection.recv()
        steps = 0
        while not command.stop:
            joins = command.active != command.before and setup.rank in (*command.before[:1], *command.active)
            if command.prepare or joins:
                connection.send(Ready(command.number))
            if setup.rank not in command.active[:1] or command.pause:
                if command.pause and setup.rank == command.active[0]:
                    connection.send(Paused(command.number, steps, 100_000))
                command = connection.recv()
                continue
            if busy_s:
                connection.send(Busy("something", 1800.0, "join_limit_s"))
                time.sleep(busy_s)
            while not connection.poll(0.01):
                steps += 1
                connection.send(Report(command.number, steps, 100_000, steps, 0.01, 1.0))
            command = connection.recv()
        if setup.rank == command.active[0]:
            setup.checkpoint.touch()
            connection.send(Ended(False, steps))

    rank_process.Rank.run = run  # type: ignore[method-assign]
    rank_process.main(setup, connection)


def busy_before_training(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """As `without_training`, but it is busy for two seconds after each command."""
    without_training(setup, connection, 2.0)


def without_connection(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """Fails after its connection has broken, so that the failure cannot be sent."""

    def run(self: rank_process.Rank) -> None:
        connection.close()
        raise RuntimeError("connection reset by peer")

    rank_process.Rank.run = run  # type: ignore[method-assign]
    rank_process.main(setup, connection)


def ends_without_message(
    setup: rank_process.RankSetup, connection: Connection[Any, Any], message: Ended | None = None
) -> None:
    """Forks a process that has a copy of the connection, and ends with exit code 3."""

    def run(self: rank_process.Rank) -> None:
        if os.fork() == 0:
            signal.pause()
        if message is not None:
            connection.send(message)
        os._exit(3)

    rank_process.Rank.run = run  # type: ignore[method-assign]
    rank_process.main(setup, connection)


def ends_with_message(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """As `ends_without_message`, but it has sent the result of the job."""
    ends_without_message(setup, connection, Ended(True, 5))


def with_a_process(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """Starts a process, as rendering does, and finishes when that process has ended."""

    def run(self: rank_process.Rank) -> None:
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        connection.send(Ended(process.exitcode == 0, 0))

    rank_process.Rank.run = run  # type: ignore[method-assign]
    rank_process.main(setup, connection)


def lost_before_sending(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """If the folder of the job has a file `kill`, a rank that is to join others to send them its state is killed; with
    a file `hang` it hangs. It renames the file to `done`.
    """
    join = rank_process.Rank._join_group

    def lose(self: rank_process.Rank, members: list[int], name: str) -> None:
        sends = name.endswith("/state") and self.training is not None and self.training.done
        for action in ("kill", "hang") if sends else ():
            if (setup.folder / action).exists():
                (setup.folder / action).rename(setup.folder / "done")
                if action == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(1000.0)
        join(self, members, name)

    rank_process.Rank._join_group = lose  # type: ignore[method-assign]
    narrow(setup, connection)


def hung_while_reading(
    setup: rank_process.RankSetup, connection: Connection[Any, Any], units: tuple[int, ...] = (1,)
) -> None:
    """The ranks of jobs `b` and `c` on these units do not finish reading their data."""
    read = rank_process.read_data

    def wait(*arguments: Any) -> Any:
        if setup.job.name in "bc" and setup.rank in units:
            time.sleep(1000.0)
        return read(*arguments)

    rank_process.read_data = wait  # type: ignore[assignment]
    narrow(setup, connection)


def hung_while_reading_anywhere(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """As `hung_while_reading`, on both units."""
    hung_while_reading(setup, connection, (0, 1))
