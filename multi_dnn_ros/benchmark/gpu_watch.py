"""GPU utilization during a run, from nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import IO, Any

import numpy as np

from multi_dnn_ros.common.child_program import child_command
from multi_dnn_ros.common.reporting import nvidia_smi_id

_QUERY = "utilization.gpu,memory.used"


class GpuWatch:
    """Context manager that polls nvidia-smi once per second in a process of its own. Without nvidia-smi there are no
    figures.
    """

    def __init__(self, index: int = 0) -> None:
        self._tool = shutil.which("nvidia-smi")
        # Not in __enter__, because it may import PyTorch, which takes seconds.
        self._id = nvidia_smi_id(index) if self._tool is not None else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def __enter__(self) -> GpuWatch:
        if self._tool is not None:
            self._output = tempfile.TemporaryFile()
            command = child_command(
                self._tool,
                f"--id={self._id}",
                f"--query-gpu={_QUERY}",
                "--format=csv,noheader,nounits",
                "-l",
                "1",
            )
            self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def figures(self) -> dict[str, Any]:
        """Utilization (mean, maximum) and memory in use (minimum, maximum); empty without a GPU."""
        if self._output is None:
            return {}
        self._output.seek(0)
        return parse_output(self._output.read().decode(errors="replace"))


def parse_output(text: str) -> dict[str, Any]:
    """Figures from nvidia-smi's lines. Lines without two numbers are skipped; the first and last may be incomplete."""
    rows = []
    for line in text.splitlines():
        try:
            busy, mebibytes = (float(part) for part in line.split(","))
        except ValueError:
            continue
        rows.append((busy / 100.0, mebibytes))
    if not rows:
        return {}
    busy_shares, memory = np.array(rows).T
    return {
        "samples": len(rows),
        "busy_mean": float(busy_shares.mean()),
        "busy_most": float(busy_shares.max()),
        "memory_mib": [float(memory.min()), float(memory.max())],
    }
