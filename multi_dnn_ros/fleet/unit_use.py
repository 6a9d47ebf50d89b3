"""Use of each unit: CPU time of its ranks per thread, or what nvidia-smi reports."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

import psutil

from multi_dnn_ros.common.reporting import cpu_count, nvidia_smi_id
from multi_dnn_ros.planning.batch_units import Unit

_GPU_SAMPLE_S = 1.0


class UnitUse:
    """Averages since the last :meth:`take`."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self._cpu: dict[int, float] = {}
        self._busy = [0.0] * len(units)
        self._since = self._sampled = time.monotonic()
        self._gpu: list[list[float]] = [[] for _ in units]
        cuda = {number: unit.device for number, unit in enumerate(units) if unit.device.startswith("cuda")}
        self._smi = shutil.which("nvidia-smi") if cuda else None
        self._smi_ids = {number: nvidia_smi_id(int(device.partition(":")[2])) for number, device in cuda.items()}

    def sample(self, pids: Sequence[Sequence[int]]) -> None:
        """Add the use since the last call. pids: ids of the processes on each unit."""
        for unit, processes in enumerate(pids):
            if self._units[unit].device == "cpu":
                self._busy[unit] += sum(self._new_cpu_s(pid) for pid in processes)
        now = time.monotonic()
        if self._smi is not None and now - self._sampled >= _GPU_SAMPLE_S:
            self._sampled = now
            for unit, value in self._gpu_use(self._smi).items():
                self._gpu[unit].append(value)

    def take(self) -> list[float]:
        """Use 0..1 of each unit since the last call."""
        now = time.monotonic()
        seconds, self._since = max(1e-3, now - self._since), now
        result = []
        for unit, kind in enumerate(self._units):
            if kind.device == "cpu":
                result.append(min(1.0, self._busy[unit] / seconds / (kind.threads or cpu_count())))
            else:
                values = self._gpu[unit]
                result.append(sum(values) / len(values) if values else 0.0)
        self._busy = [0.0] * len(self._units)
        self._gpu = [[] for _ in self._units]
        return result

    def _new_cpu_s(self, pid: int) -> float:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            self._cpu.pop(pid, None)
            return 0.0
        total = times.user + times.system
        before = self._cpu.get(pid)
        self._cpu[pid] = total
        return 0.0 if before is None else total - before

    def _gpu_use(self, smi: str) -> Mapping[int, float]:
        command = [
            smi,
            f"--id={','.join(self._smi_ids.values())}",
            "--query-gpu=index,uuid,utilization.gpu",
            "--format=csv,noheader,nounits",
        ]
        try:
            use = parse_use(subprocess.run(command, capture_output=True, text=True, timeout=5).stdout)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        # A GPU without this figure, such as a MIG instance, counts as free.
        return {unit: use[name] for unit, name in self._smi_ids.items() if name in use}


def parse_use(text: str) -> dict[str, float]:
    """Use 0..1 in lines such as `0, GPU-8d1b..., 37`, by index and by UUID. Lines without a number are skipped."""
    use = {}
    for index, uuid, percent in re.findall(r"^(\d+), *(\S+), *(\d+)$", text, re.M):
        use[index] = use[uuid] = float(percent) / 100.0
    return use
