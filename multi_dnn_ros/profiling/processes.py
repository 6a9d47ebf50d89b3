"""Runs a function in a group of processes, each with its own GPU or part of the CPU's cores.

This process is the first one of its machine. The others are started by torchrun, or by :func:`run_processes`.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.processes import describe_exit, end_with_parent
from multi_dnn_ros.profiling.network import ReportProgress

# It reports the processes that are ended with a failed one.
logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)

#: Longest wait of a process for the others, and for the end of one whose connection broke.
_TIMEOUT, _END_S = timedelta(minutes=10), 5.0

#: (device of this process, progress) -> result. Can be pickled, because new processes get it.
Work = Callable[[torch.device, ReportProgress], Any]


def local_processes() -> int:
    """Number of processes that torchrun has started on this host, this one included; 0 without torchrun."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def run_here(work: Work, device: torch.device, progress: ReportProgress) -> Any:
    """Run `work` in this process, one of torchrun's; the result of rank 0, None in the others."""
    return _run(int(os.environ["LOCAL_RANK"]), work, device, progress)


def run_processes(work: Work, count: int, device: torch.device, progress: ReportProgress) -> Any:
    """Run `work` in this process and `count` - 1 new ones on this machine; the result of this one.

    Raises what `work` raises here, and CommandError, in one line, if another process fails
    or is killed. No process is left behind, even if this one is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        group = {"init_method": f"file://{Path(folder) / 'rendezvous'}", "world_size": count}
        others: Any = start_processes(_run_other, (work, device, group), count - 1, join=False, daemon=True)
        try:
            return _run(0, work, device, progress, rank=0, **group)
        except RuntimeError:  # perhaps because another process has ended
            try:
                others.join(_END_S)
            except ProcessExitedException as error:  # killed by a signal
                number, code = error.error_index + 1, others.processes[error.error_index].exitcode
                raise CommandError(f"process {number} of {count} {describe_exit(code)}") from None
            except ProcessRaisedException as error:
                _, _, text = str(error).rpartition("\n  ")  # the message follows the traceback's last indented line
                said = (text.splitlines()[1:] or [text])[0]
                raise CommandError(f"process {error.error_index + 1} of {count} failed: {said}") from None
            raise
        finally:
            for process in others.processes:
                process.kill()
                process.join()


def _run_other(number: int, work: Work, device: torch.device, group: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    end_with_parent()
    _run(number + 1, work, device, lambda done, total: None, rank=number + 1, **group)


def _run(number: int, work: Work, device: torch.device, progress: ReportProgress, **group: Any) -> Any:
    """number: of this process on its machine. group: arguments of init_process_group; empty: as torchrun says."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=_TIMEOUT, **group)
    try:
        first = dist.get_rank() == 0
        result = work(device, progress if first else lambda done, total: None)
        dist.barrier()
        return result if first else None
    finally:
        dist.destroy_process_group()
