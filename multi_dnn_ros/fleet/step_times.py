"""Measured times of training steps, as a JSON file: the input of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from multi_dnn_ros.planning.checked_file import read_checked
from multi_dnn_ros.planning.file_model import FileModel

FORMAT: Literal["multi_dnn_ros step times 1"] = "multi_dnn_ros step times 1"

#: Defaults by kind of unit; `--measure` does not measure these figures. Those of GPUs are from one run of eight jobs on
#: four H200 (results/fleet_4gpus_prediction.json): the time slice is fitted, the pause is the median of its changes.
_CUDA = {"time_slice_ms": 1.75, "change_s": 4.0}
_CPU = {"time_slice_ms": 0.0, "change_s": 1.0}


class StepTime(FileModel):
    """Median times of one training step of `batch` images, alone on a unit.

    step_ms: whole step without gradient exchange. busy_ms: the part of it in which the unit computes.
    """

    batch: int = Field(ge=1)
    step_ms: float = Field(gt=0)
    busy_ms: float = Field(gt=0)
    samples: int = Field(ge=1)

    @model_validator(mode="after")
    def _busy_within_step(self) -> StepTime:
        if self.busy_ms > self.step_ms:
            raise ValueError(f"busy_ms = {self.busy_ms}: must be at most step_ms = {self.step_ms}")
        return self


class NetworkTimes(FileModel):
    """One network: step times by rising batch size, and the bytes of its gradients.

    start_s: seconds from the start of a job until the end of its first step; 0 in files in which it was not measured.
    """

    model: str
    size: tuple[int, int] | None = None
    gradient_bytes: int = Field(ge=1)
    steps: tuple[StepTime, ...] = Field(min_length=1)
    start_s: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _rising(self) -> NetworkTimes:
        batches = [step.batch for step in self.steps]
        if batches != sorted(set(batches)):
            raise ValueError(f"batch sizes {batches} of {self.model}: must be in ascending order")
        return self

    def at(self, batch: float) -> tuple[float, float]:
        """(busy, idle) seconds of a step of `batch` images.

        Interpolated linearly between measured sizes. Below the smallest size, its times are used, because small batches
        take as long as the launches of their operations; above the largest, busy time grows in proportion.
        """
        sizes = [float(step.batch) for step in self.steps]
        busy = _interpolated(batch, sizes, [step.busy_ms for step in self.steps])
        idle = [step.step_ms - step.busy_ms for step in self.steps]
        return busy / 1e3 * max(1.0, batch / sizes[-1]), _interpolated(batch, sizes, idle) / 1e3


class Interconnect(FileModel):
    """All-reduce between units: time of the smallest message, and bus bandwidth (as NCCL's tests define it)."""

    latency_us: float = Field(ge=0)
    bandwidth_gb_s: float = Field(gt=0)

    def all_reduce_s(self, count: int, bytes_: int) -> float:
        """Seconds of one all-reduce over `count` units; a ring moves 2 (count - 1) / count of the bytes."""
        if count < 2:
            return 0.0
        return self.latency_us * 1e-6 + 2 * (count - 1) / count * bytes_ / (self.bandwidth_gb_s * 1e9)


class StepTimes(FileModel):
    """The file. interconnect_source: where the figures of the interconnect are from.

    time_slice_ms: time slice of a unit, or 0 if a process does not use the unit while it waits for other units (see
    :mod:`multi_dnn_ros.fleet.contention`). change_s: pause of a job whose set of units changes.
    """

    format: Literal["multi_dnn_ros step times 1"] = FORMAT
    unit: str
    time_slice_ms: float = Field(default=_CPU["time_slice_ms"], ge=0)
    change_s: float = Field(default=_CPU["change_s"], ge=0)
    interconnect: Interconnect
    interconnect_source: str
    networks: tuple[NetworkTimes, ...] = Field(min_length=1)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, content: Any) -> Any:
        """The defaults depend on the kind of unit."""
        if not isinstance(content, dict):
            return content
        return {**(_CUDA if str(content.get("unit")).startswith("cuda") else _CPU), **content}

    def of(self, model: str) -> NetworkTimes:
        """The times of a network. Raises ValueError, which lists the measured networks."""
        for network in self.networks:
            if network.model == model:
                return network
        known = ", ".join(network.model for network in self.networks)
        raise ValueError(f"no step times of {model}; measured: {known}")


def read_step_times(path: Path) -> StepTimes:
    """The content of the file. Raises ProfileError, which names the file and what is wrong with it."""
    return read_checked(path, StepTimes, "file of step times", "`multi-dnn fleet --measure`")


def _interpolated(at: float, positions: Sequence[float], values: Sequence[float]) -> float:
    return float(np.interp(at, positions, values))
