"""What a unit does in its process: hold one network ready for one batch size, and run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common import extensions
from multi_dnn_ros.planning.batch_units import Unit

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class NetworkRequest:
    """Which network: arguments of :func:`multi_dnn_ros.profiling.network.load`, by the same names."""

    model: str
    weights: str = ""
    num_classes: int = 0
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class OutputForm:
    """Of one output: shape of one image's part, and its dtype in NumPy's words."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class RunTimes:
    """Milliseconds of one batch: images to the device, the network, outputs back into the host's memory."""

    input_ms: float
    compute_ms: float
    output_ms: float

    @property
    def total_ms(self) -> float:
        return self.input_ms + self.compute_ms + self.output_ms


class Executor(Protocol):
    """Made in the unit's own process, and used by one thread. Raises whatever loading or running raises.

    An executor that runs out of memory raises MemoryError, torch.OutOfMemoryError, or an error caused by one.
    """

    def __init__(self, unit: Unit, network: NetworkRequest, precision: str) -> None: ...

    @property
    def device(self) -> str:
        """What times depend on beside the model: hardware, threads or SMs, precision, backend, versions."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image as the network takes it: (3, height, width), float32."""
        ...

    @property
    def parameters(self) -> int:
        """How many the network has."""
        ...

    @property
    def tolerance(self) -> float:
        """Largest error of its outputs against float32, relative to their scale."""
        ...

    def prepare(self, batch: int) -> tuple[OutputForm, ...]:
        """Make the network ready for `batch` images, warmed up; what was ready for another size may be given up."""
        ...

    def attach(self, inputs: Array, outputs: tuple[Array, ...]) -> None:
        """Told where images will be read and outputs written, before `run`: a GPU may register this memory."""
        ...

    def run(self, images: Array, outputs: tuple[Array, ...]) -> RunTimes:
        """Run the batch size that was prepared last.

        images: (batch, 3, height, width) float32. outputs: (batch, ...) each, written in the same order.
        """
        ...

    def transfer(self, images: Array) -> RunTimes:
        """Images to the device and back without a network: compute_ms is 0. For a CPU, copies in memory."""
        ...


def identity(unit: Unit, precision: str) -> str:
    """`device` of the unit's executor on this machine, without a network.

    An executor class gives it as a static method of the same name. Raises what the executor raises for a unit that is
    not there.
    """
    described: str = executor_class(unit).identity(unit, precision)
    return described


def executor_class(unit: Unit) -> Any:
    """The class that the unit names. Raises ImportError and AttributeError."""
    return extensions.load(unit.executor)


def random_images(shape: tuple[int, int, int], batch: int, seed: int = 0) -> Array:
    """(batch, *shape) float32 between 0 and 1; the first images of a larger batch are those of a smaller one."""
    return np.random.default_rng(seed).random((batch, *shape), dtype=np.float32)
