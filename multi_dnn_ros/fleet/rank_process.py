"""The process of one job on one unit (a rank): follows the supervisor's commands between steps.

Active ranks, those with a share, form a process group. The first of them checks for commands; whether one has arrived
is exchanged with the gradients of the next step, so that all active ranks apply it after the same step. A rank without
a share holds no network and waits.
"""

from __future__ import annotations

import gc
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from tqdm import tqdm

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.common.parent_watch import end_with_parent
from multi_dnn_ros.fleet.forked_process import lead_process_group
from multi_dnn_ros.fleet.job_training import JobTraining, read_data
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Busy, Command, Ended, Failed, NotSaved, Paused, Ready, Report
from multi_dnn_ros.fleet.networks import load_trainable
from multi_dnn_ros.fleet.shares import Shares
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.planning.memory_errors import is_memory_error
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.checks import CheckedData
from multi_dnn_ros.training.trainable import Trainable

LOOPBACK = "127.0.0.1"
#: Longest wait for another rank, at least. The supervisor notices earlier that a rank hangs, and says which.
_TIMEOUT_S = 1800.0
_REPORT_S, _WINDOW = 0.25, 20


@dataclass(frozen=True)
class RankSetup:
    """A rank of a job and its unit. folder: the job's. host, port: address of the TCPStore through which ranks find
    each other; prefix: that of their keys.
    """

    job: FleetJob
    rank: int
    unit: Unit
    folder: Path
    host: str
    port: int
    prefix: str

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"


def main(setup: RankSetup, connection: Connection[Any, Any]) -> None:
    """Run until the job ends, the connection is closed, or the parent process has ended.

    The exit code is 0 only if the job has ended, or the supervisor has stopped it.
    """
    end_with_parent()
    lead_process_group()
    for number in (signal.SIGINT, signal.SIGTERM):  # may reach the whole process group
        signal.signal(number, signal.SIG_IGN)  # the supervisor stops the rank after a checkpoint
    # The default lock is a semaphore for several processes. A rank that is killed does not remove it, and Python warns
    # about it on the terminal when the command ends.
    tqdm.set_lock(threading.RLock())
    redirect_output(setup)
    if setup.host == LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    try:
        Rank(setup, connection).run()
    except EOFError:
        sys.exit(1)  # the supervisor has ended, does not need this rank any more, or the connection has broken
    except Exception as error:
        failure = Failed(
            summarize_error(error), is_memory_error(error), isinstance(error, ValueError | OSError | MissingExtra)
        )
        try:
            connection.send(failure)
        except OSError:
            sys.exit(1)
        raise


def redirect_output(setup: RankSetup) -> None:
    """Append what the process writes to the rank's log."""
    log = os.open(setup.folder / f"rank{setup.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def use_unit(unit: Unit) -> None:
    """Let PyTorch use the device and as many threads as a rank on the unit does."""
    if unit.device.startswith("cuda"):
        torch.cuda.set_device(unit.device)
        torch.set_num_threads(1)  # as torchrun does: every job has a rank per unit, each with a thread per core
    elif unit.threads:
        torch.set_num_threads(unit.threads)


class Rank:
    """training: None while the rank has no share."""

    def __init__(self, setup: RankSetup, connection: Connection[Any, Any]) -> None:
        self.setup = setup
        self.training: JobTraining | None = None
        self._data: CheckedData | None = None  # kept without the network: reading and checking it takes long
        self._prepared: Trainable | None = None  # the network, from _prepare() to the first share
        self._connection = connection
        self._shares: Shares = ()
        self._device = torch.device(setup.unit.device)
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self._reported = self._saved = time.monotonic()
        use_unit(setup.unit)

    def run(self) -> None:
        command: Command = self._connection.recv()
        while True:
            self._announce(command)
            self._apply(command)
            if command.stop:
                return
            if self.setup.rank not in command.active or command.pause:
                if command.pause and self.setup.rank == command.active[0] and self.training is not None:
                    self._connection.send(Paused(command.number, self.training.done, self.training.total))
                command = self._connection.recv()
                continue
            following = self._train(command)
            if following is None:
                return
            command = following

    def _announce(self, command: Command) -> None:
        """Report that it takes long to begin with other shares: ranks join, and kernels are chosen or compiled."""
        if command.prepare or command.stop:
            return
        if command.shares != self._shares and self.setup.rank in (*command.before[:1], *command.active[:1]):
            units = ", ".join(map(str, command.active))
            activity = f"joining units {units}" if len(command.active) > 1 else f"starting on unit {units}"
            self._connection.send(Busy(activity, self.setup.job.join_limit_s, "join_limit_s"))
        self._shares = command.shares

    def _apply(self, command: Command) -> None:
        """Join, leave or keep the process group; pass the state on to ranks that join."""
        if command.prepare:
            self._prepare()
            self._connection.send(Ready(command.number))
            return
        rank, before, active = self.setup.rank, command.before, command.active
        leader = before[0] if before else None
        if command.stop:
            if rank == leader and self.training is not None:
                self._leave_group()
                self.training.save(self.setup.checkpoint)
                self._connection.send(Ended(False, self.training.done))
            return
        if active != before:
            self._leave_group()
            joining = [each for each in active if each not in before]
            if rank in joining:
                self._begin(fresh=leader is None)
            if rank == leader or rank in active:
                self._connection.send(Ready(command.number))
            if leader is not None and joining and rank in (leader, *joining):
                members = sorted({leader, *joining})
                self._join_group(members, f"{command.number}/state")
                content = [self.training.state_bytes() if rank == leader and self.training is not None else b""]
                dist.broadcast_object_list(content, src=members.index(leader))
                if rank in joining and self.training is not None:
                    self.training.load_bytes(content[0])
                self._leave_group()
            if rank not in active:
                self._release()
            elif len(active) > 1:
                self._join_group(list(active), f"{command.number}")
        if self.training is not None and rank in active:
            self.training.take(command.shares, rank)

    def _prepare(self) -> None:
        """Build the network, read the data, and initialize the device: a CUDA context takes seconds."""
        self._prepared = load_trainable(self.setup.job)
        self._data = read_data(self.setup.job, self._prepared)
        torch.empty(1, device=self._device)

    def _begin(self, *, fresh: bool) -> None:
        network, self._prepared = self._prepared, None
        self.training = JobTraining(self.setup.job, self._device, self._data, network)
        self._data = self.training.data
        if fresh and self.setup.checkpoint.exists():
            self.training.load(self.setup.checkpoint)

    def _train(self, command: Command) -> Command | None:
        """Train until the next command, which is returned, or until the last step (returns None)."""
        training = self.training
        assert training is not None
        leads = self.setup.rank == command.active[0]
        self._times.clear()
        self._reported = 0.0  # report the first measured step at once
        count = 0
        while training.done < training.total:
            begin = time.monotonic()
            flag = training.step(1.0 if leads and self._connection.poll() else 0.0)
            count += 1
            if count > 1:  # the first step after a change also loads data and plans kernels
                self._times.append(time.monotonic() - begin)
            if leads:
                self._report(command.number, count, last=training.done == training.total)
                # After a command, another rank may already lead and write the same file.
                if not flag and time.monotonic() - self._saved > self.setup.job.checkpoint_every_s:
                    self._save(training)
            if flag:
                following: Command = self._connection.recv()
                if training.done < training.total or not following.pause:
                    return following  # otherwise there is nothing left for which to wait
        self._leave_group()
        if leads:
            self._finish(training)
        return None

    def _report(self, number: int, count: int, *, last: bool) -> None:
        training, now = self.training, time.monotonic()
        if training is None or not self._times or (now - self._reported < _REPORT_S and not last):
            return
        self._reported = now
        step_s = statistics.median(self._times)
        self._connection.send(Report(number, training.done, training.total, count, step_s, training.losses[-1]))

    def _save(self, training: JobTraining) -> None:
        """Write a checkpoint. The job continues without one: the disk may only be full for a while."""
        self._connection.send(self._busy("writing a checkpoint"))
        try:
            training.save(self.setup.checkpoint)
        except TrainingError as error:
            self._connection.send(NotSaved(str(error)))
        self._saved = time.monotonic()

    def _finish(self, training: JobTraining) -> None:
        self._connection.send(self._busy("writing a checkpoint and scoring"))
        training.save(self.setup.checkpoint)
        output = self.setup.job.output or self.setup.folder / f"{self.setup.job.name}{training.suffix()}"
        scores = training.finish(output)
        self._connection.send(Ended(True, training.done, tuple(training.losses), tuple(scores.items())))

    def _busy(self, activity: str) -> Busy:
        return Busy(activity, self.setup.job.busy_limit_s, "busy_limit_s")

    def _release(self) -> None:
        """Free the memory of the network."""
        self.training = self._prepared = None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _join_group(self, members: list[int], name: str) -> None:
        # The others also wait while the first active rank writes a checkpoint.
        job = self.setup.job
        timeout = timedelta(seconds=max(_TIMEOUT_S, 2 * job.join_limit_s, 2 * job.busy_limit_s))
        store = TCPStore(self.setup.host, self.setup.port, is_master=False, timeout=timeout)
        dist.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            store=PrefixStore(f"{self.setup.prefix}/{name}", store),
            rank=members.index(self.setup.rank), world_size=len(members), timeout=timeout,
        )  # fmt: skip

    def _leave_group(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
