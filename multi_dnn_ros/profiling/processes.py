"""Runs a function in a group of processes, each with its own GPU or part of the CPU's cores."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from multi_dnn_ros.common.errors import CommandError, summarize_error
from multi_dnn_ros.common.processes import describe_exit, end_with_parent
from multi_dnn_ros.planning.measure import ReportProgress

# It reports the processes that are ended with a failed one.
logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)

_TIMEOUT = timedelta(minutes=10)
_POLL_S = 0.2

#: (device of this process, argument, progress) -> result. At module level, because new processes import it.
Work = Callable[[torch.device, Any, ReportProgress], Any]


def local_processes() -> int:
    """Number of processes that torchrun has started on this host, this one included; 0 without torchrun."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def run_here(work: Work, argument: Any, device: torch.device, progress: ReportProgress) -> Any:
    """Run `work` in this process, one of torchrun's; the result of rank 0, None in the others."""
    own = _device_of(device, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(_backend(own), timeout=_TIMEOUT)
    try:
        first = dist.get_rank() == 0
        result = work(own, argument, progress if first else lambda done, total: None)
        return result if first else None
    finally:
        dist.destroy_process_group()


def run_processes(work: Work, argument: Any, count: int, device: torch.device, progress: ReportProgress) -> Any:
    """Run `work` in `count` new processes on this machine; the result of rank 0.

    argument: must be picklable. Raises CommandError, in one line, if a process fails or is killed. No process is left
    behind, even if this one is killed.
    """
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    failure = ""
    result: Any = None

    def receive() -> None:
        nonlocal failure, result
        with suppress(EOFError):
            while receiver.poll():
                kind, value = receiver.recv()
                if kind == "progress":
                    progress(*value)
                elif kind == "result":
                    result = value
                else:
                    failure = failure or value

    with tempfile.TemporaryDirectory() as folder:
        arguments = (work, argument, count, device, str(Path(folder) / "rendezvous"), sender)
        group: Any = start_processes(_run_rank, arguments, count, join=False, daemon=True)
        sender.close()
        try:
            while not group.join(_POLL_S):
                receive()
            receive()
        except ProcessExitedException as error:  # killed by a signal
            receive()
            code = group.processes[error.error_index].exitcode
            raise CommandError(failure or f"process {error.error_index} of {count} {describe_exit(code)}") from None
        except ProcessRaisedException as error:
            receive()
            _, _, text = str(error).rpartition("\n  ")  # the message follows the last indented line of the traceback
            said = (text.splitlines()[1:] or [text])[0]
            raise CommandError(failure or f"process {error.error_index} of {count} failed: {said}") from None
        finally:
            for process in group.processes:
                process.kill()
                process.join()
            receiver.close()
    return result


def _run_rank(
    rank: int, work: Work, argument: Any, count: int, device: torch.device, rendezvous: str, sender: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    end_with_parent()
    own = _device_of(device, rank)

    def progress(done: int, total: int) -> None:
        if rank == 0:
            sender.send(("progress", (done, total)))

    dist.init_process_group(
        _backend(own), init_method=f"file://{rendezvous}", rank=rank, world_size=count, timeout=_TIMEOUT
    )
    try:
        result = work(own, argument, progress)
    except (ValueError, OSError) as error:  # expected ones, such as a model that does not exist
        sender.send(("failure", summarize_error(error)[:500]))
        raise
    if rank == 0:
        sender.send(("result", result))
    dist.barrier()
    dist.destroy_process_group()


def _device_of(device: torch.device, local_rank: int) -> torch.device:
    if device.type != "cuda":
        return device
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"
