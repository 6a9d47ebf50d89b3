"""The interface of what runs in the process of a unit: one network, prepared for one batch size at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.planning.batch_units import Unit, UnitError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class NetworkRequest:
    """The network to load: arguments of :func:`multi_dnn_ros.profiling.network.load` with the same names."""

    model: str
    weights: str = ""
    num_classes: int = 0
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class OutputForm:
    """One output. shape: for a single image, without the batch axis. dtype: name of the dtype in NumPy."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class RunTimes:
    """Times of one batch: copying images to the device, running the network, copying outputs to host memory.

    host_ms: what else passed on the host of a GPU, for launching and for waking up when the results have arrived.
    """

    input_ms: float
    compute_ms: float
    output_ms: float
    host_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.input_ms + self.compute_ms + self.output_ms + self.host_ms


class Executor(Protocol):
    """Created in the process of the unit and used by one thread. Methods raise whatever loading or running raises.

    An executor that runs out of memory raises MemoryError, torch.OutOfMemoryError, or an error caused by one of them.

    An executor may also have an attribute `image_dtype`: NumPy's name of the dtype in which images are best copied to
    the device, ``float32`` (the default) or, if the network computes in it anyway, ``float16``.
    """

    def __init__(self, unit: Unit, network: NetworkRequest, precision: str) -> None: ...

    @property
    def device(self) -> str:
        """What times depend on besides the model: hardware, threads or SMs, precision, backend, library versions."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one input image: (3, height, width)."""
        ...

    @property
    def parameters(self) -> int:
        """Number of parameters of the network."""
        ...

    @property
    def tolerance(self) -> float:
        """Largest allowed deviation of the outputs from float32, relative to the largest value."""
        ...

    @staticmethod
    def identity(unit: Unit, precision: str) -> str:
        """The value that `device` has for this unit on this machine, without loading a network.

        It is compared with the `device` of stored tables. Raises UnitError for a unit that this machine does not have.
        """
        ...

    def prepare(self, batch: int) -> tuple[OutputForm, ...]:
        """Prepare and warm up the network for batches of `batch` images; another prepared size may be released."""
        ...

    def attach(self, inputs: Array, outputs: tuple[Array, ...]) -> None:
        """Called before `run` with the arrays that `run` will use, so that a GPU can register their memory.

        An executor that registers memory must keep the arrays until it has unregistered it.
        """
        ...

    def run(self, images: Array, outputs: tuple[Array, ...]) -> RunTimes:
        """Run a batch of the size that was prepared last.

        images: (batch, 3, height, width), in `image_dtype` if all units of a batch have the same, else in float32.
        outputs: (batch, ...) each, filled in the order of the images.
        """
        ...

    def transfer(self, images: Array) -> RunTimes:
        """Copy images to the device and back without running the network; compute_ms is 0. On a CPU, copy in memory."""
        ...


def identity(unit: Unit, precision: str) -> str:
    """The value of `device` for the unit's executor on this machine, without loading a network.

    The executor class provides it as a static method of the same name. Raises UnitError, which names the unit, for a
    unit that this machine does not have, and for an executor that cannot be used.
    """
    try:
        described = executor_class(unit).identity(unit, precision)
    except (UnitError, CommandError):
        raise
    except (Exception, SystemExit) as error:  # whatever an executor of another package raises
        problem = f"{type(error).__name__}: {summarize_error(error)}"
        raise UnitError(f"unit '{unit.name}': `identity` of executor {unit.executor} raised {problem}") from error
    if not isinstance(described, str):
        found = type(described).__name__
        raise UnitError(f"unit '{unit.name}': `identity` of executor {unit.executor} returned {found}; expected str")
    return described


def image_dtype(executor: Executor) -> str:
    """The executor's `image_dtype`, or its default."""
    dtype: str = getattr(executor, "image_dtype", "float32")
    return dtype


def executor_class(unit: Unit) -> Any:
    """The class that the unit names. Raises UnitError, which names the unit, if it cannot be imported."""
    try:
        return extensions.load(unit.executor)
    except (Exception, SystemExit) as error:  # whatever a module of another package raises
        problem = f"{type(error).__name__}: {summarize_error(error)}"
        raise UnitError(f"unit '{unit.name}': executor {unit.executor} cannot be used: {problem}") from error


def random_images(shape: tuple[int, int, int], batch: int, seed: int = 0) -> Array:
    """Random images (batch, *shape) float32 in [0, 1). A larger batch begins with the images of a smaller one."""
    return np.random.default_rng(seed).random((batch, *shape), dtype=np.float32)
