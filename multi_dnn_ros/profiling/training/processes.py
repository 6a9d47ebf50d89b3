"""Starts the processes of a group on this machine, and ends all of them as soon as one fails or the parent ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from typing import Any, Protocol

import torch
import torch.distributed as dist

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.parent_watch import end_with_parent
from multi_dnn_ros.common.processes import describe_exit
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.training.distributed import PROCESS_LOST, wait_for_all

_TIMEOUT = timedelta(minutes=10)
#: After the first failure, wait this long for others: the process that fails first need not be the cause.
_GRACE_S = 1.0
_JOIN_S = 5.0

Report = Callable[[int, int], None]
_Store: Any = dist.TCPStore  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Member:
    """A process of the group. per_host: number of processes on its host. device: the device that it computes on."""

    rank: int
    processes: int
    per_host: int
    device: torch.device


class Work(Protocol):
    """The function that every process runs. It must be at module level, because new processes import it.

    The result of rank 0 is that of the group.
    """

    def __call__(self, member: Member, argument: Any, report: Report) -> Any: ...


@dataclass
class _Process:
    rank: int
    process: Any
    pipe: Any
    done: bool = False
    result: Any = None
    failure: tuple[str, str] | None = field(default=None)


def check_processes(count: int, device: torch.device) -> None:
    """Raise UsageError if there are fewer GPUs than `count`, because processes on the same GPU disturb each other."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and count > gpus:
        raise UsageError(f"--processes is {count}, but PyTorch sees {gpus} GPUs here; at most one process per GPU")


def local_processes() -> int:
    """Number of processes that torchrun has started on this host, this one included; 0 without torchrun."""
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun else 0


def run_here(work: Work, argument: Any, device: torch.device, report: Report) -> Any:
    """Run `work` in this process, as one of torchrun's or alone. Returns the result of `work` in this process."""
    per_host = local_processes()
    if not per_host:
        return work(Member(0, 1, 1, device), argument, report)
    local_rank = int(os.environ["LOCAL_RANK"])
    device = _device_of(device, local_rank)
    dist.init_process_group(_backend(device), timeout=_TIMEOUT)
    try:
        quiet: Report = report if dist.get_rank() == 0 else lambda done, total: None
        return work(Member(dist.get_rank(), dist.get_world_size(), per_host, device), argument, quiet)
    finally:
        dist.destroy_process_group()


def run_processes(work: Work, argument: Any, count: int, device: torch.device, report: Report) -> Any:
    """Run `work` in `count` new processes on this machine, and return the result of rank 0.

    argument: must be picklable. report: called with the progress of rank 0. Raises CommandError, in one line, if a
    process fails or is killed. No process is left behind, even if this one is killed.
    """
    store = _Store("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    context = multiprocessing.get_context("spawn")
    group: list[_Process] = []
    try:
        for rank in range(count):
            receiver, sender = context.Pipe(duplex=False)
            member = Member(rank, count, count, _device_of(device, rank))
            process = context.Process(
                target=_serve, args=(work, argument, member, store.port, sender), name=f"training {rank}", daemon=True
            )
            with block_in_children(signal.SIGINT):
                process.start()
            sender.close()
            group.append(_Process(rank, process, receiver))
        _wait(group, report)
        return group[0].result
    finally:
        for each in group:
            if each.process.is_alive() and not each.done:
                each.process.kill()
        for each in group:
            each.process.join(_JOIN_S)
            if each.process.is_alive():
                each.process.kill()
                each.process.join()
            each.pipe.close()


def _wait(group: list[_Process], report: Report) -> None:
    failed_at: float | None = None
    while not all(each.done for each in group):
        waiting = [each for each in group if not each.done]
        sources = [each.pipe for each in waiting] + [each.process.sentinel for each in waiting]
        connection.wait(sources, timeout=0.2)
        for each in waiting:
            _receive(each, report)
        failures = [each for each in group if each.failure is not None]
        if failures and failed_at is None:
            failed_at = time.monotonic()
        killed = any(each.failure is not None and each.failure[0] == "killed" for each in failures)
        if failed_at is not None and (killed or time.monotonic() - failed_at > _GRACE_S):
            break
    failures = [each for each in group if each.failure is not None]
    # A killed process comes first: it causes errors in the others, which lose their connection to it.
    order = ("killed", "model", "error", "lost")
    for kind in order:
        for each in failures:
            if each.failure is not None and each.failure[0] == kind:
                text = each.failure[1]
                where = f"process {each.rank} of {len(group)} " if kind != "model" else ""
                raise CommandError(f"{where}{text}")


def _receive(each: _Process, report: Report) -> None:
    ended = not each.process.is_alive()
    try:
        while each.pipe.poll():
            kind, value = each.pipe.recv()
            if kind == "progress":
                report(*value)
            elif kind == "result":
                each.result, each.done = value, True
            elif each.failure is None:
                each.failure, each.done = (kind, value), True
    except (EOFError, OSError):
        ended = True
        each.process.join(_JOIN_S)
    if ended and not each.done:
        each.failure, each.done = ("killed", describe_exit(each.process.exitcode)), True


def _device_of(device: torch.device, local_rank: int) -> torch.device:
    return torch.device("cuda", local_rank) if device.type == "cuda" else device


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _serve(work: Work, argument: Any, member: Member, port: int, pipe: Any) -> None:
    """The main function of a process of the group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    end_with_parent()
    try:
        if member.device.type == "cuda":
            torch.cuda.set_device(member.device)
        store = _Store("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
        dist.init_process_group(
            _backend(member.device), store=store, rank=member.rank, world_size=member.processes, timeout=_TIMEOUT
        )

        def report(done: int, total: int) -> None:
            if member.rank == 0:
                pipe.send(("progress", (done, total)))

        result = work(member, argument, report)
        pipe.send(("result", result if member.rank == 0 else None))
        wait_for_all()
        dist.destroy_process_group()
    except Exception as error:
        if os.environ.get("MULTI_DNN_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        explained = isinstance(error, (ValueError, CommandError, UsageError, OSError))
        kind = "model" if explained else "lost" if PROCESS_LOST.search(str(error)) else "error"
        text = summarize_error(error) if explained else f"failed: {type(error).__name__}: {summarize_error(error)}"
        pipe.send((kind, text))
        os._exit(1)  # a thread of gloo or NCCL may still be waiting
