"""How an engine process ended, and by what, in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.serving.parent import EXIT_ORPHANED

_CUDA_ERROR = re.compile(r"(CUDA error: .*|CUDA driver error: .*)")


@dataclass(frozen=True)
class End:
    """How an engine process ended.

    cause: in words. exit_code, signal: one of them is None. requested: it was told to quit. under_way: the DNNs whose
    jobs ran. stderr_tail: the last lines that it wrote.
    """

    cause: str
    exit_code: int | None
    signal: int | None
    requested: bool
    under_way: tuple[str, ...]
    stderr_tail: str


def cause_of(code: int, written: Sequence[str], *, killed: str, dying: str, out_of_memory: bool) -> str:
    """What a process ended by.

    code: its exit code; negative: the signal that killed it. written: the last lines that it wrote. killed: why it was
    killed by us; dying: why it ended itself, as it said before; empty: neither. out_of_memory: the kernel has killed
    some process for want of memory since it was started.
    """
    if killed and code == -signal.SIGKILL:
        return killed
    if dying:
        return dying
    if out_of_memory and code == -signal.SIGKILL:
        return "killed by the kernel's out-of-memory killer"
    how = f"killed by {_name(-code)}" if code < 0 else f"exited with code {code}"
    if code == EXIT_ORPHANED:
        return f"{how}: it lost the connection to the node's process"
    # As libtorch writes before it aborts the process.
    errors = [found for line in written for found in _CUDA_ERROR.findall(line)]
    if code and errors:
        return f"{errors[-1].strip()} ({how})"
    if code > 0 and written:
        return f"{how}: {written[-1]}"
    return how


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
