"""How an engine process ended, and why."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.common.parent_process import EXIT_ORPHANED

_CUDA_ERROR = re.compile(r"(CUDA error: .*|CUDA driver error: .*)")


@dataclass(frozen=True)
class End:
    """How an engine process ended.

    cause: a phrase for messages. exit_code, signal: one of them is None. running: DNNs with a running job.
    output_tail: the last lines of its stdout and stderr.
    """

    cause: str
    exit_code: int | None
    signal: int | None
    running: tuple[str, ...]
    output_tail: str


def cause_of(code: int, output: Sequence[str], *, killed: str, abort_cause: str, out_of_memory: bool) -> str:
    """Why a process ended.

    code: its exit code; negative: the signal that killed it. output: the last lines that it wrote. killed: why the
    node's process killed it, or empty. abort_cause: the cause that it sent before it ended itself, or empty.
    out_of_memory: whether the kernel's out-of-memory killer has killed a process recently.
    """
    if killed and code == -signal.SIGKILL:
        return killed
    if abort_cause:
        return abort_cause
    if out_of_memory and code == -signal.SIGKILL:
        return "killed by the kernel's out-of-memory killer"
    how = f"killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
    if code == EXIT_ORPHANED:
        return f"{how}: it lost the connection to the node's process"
    # libtorch writes these lines before it aborts the process.
    errors = [found for line in output for found in _CUDA_ERROR.findall(line)]
    if code and errors:
        return f"{errors[-1].strip()} ({how})"
    if code > 0 and output:
        return f"{how}: {output[-1]}"
    return how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
