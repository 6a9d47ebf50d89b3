"""What runs in the process of a unit: load a network, prepare it for a batch size, run a part of a batch and time it.

The process belongs to a pool, which calls one function after another.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, TypeVar

import torch
from torch import Tensor

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.onnx_providers import hardware_facts
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.processes import end_with_parent
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.models.balance import balance, random_image
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.models.registry import source_of
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.partition.tables import BatchTable
from multi_dnn_ros.planning.units import Unit, UnitError
from multi_dnn_ros.serving.choices import automatic_providers, check_backend, choose_backend

R = TypeVar("R")

#: Runs before the timed ones.
_WARM_UP = 2


@dataclass(frozen=True)
class NetworkRequest:
    """The network to load. weights: "" is random for a torchvision network, as times do not depend on them."""

    model: str
    precision: str = "auto"
    weights: str = ""
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class OutputForm:
    """One output of the network. shape: for one image, without the batch axis."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Times:
    """Times of one run in milliseconds; see Row. On a GPU the total also contains launching and waking up."""

    input_ms: float
    compute_ms: float
    output_ms: float
    total_ms: float


class Network:
    """A network on a unit, prepared for one batch size at a time. Sets PyTorch's threads or GPU for the process."""

    def __init__(self, unit: Unit, request: NetworkRequest) -> None:
        self._device = torch.device(unit.device)
        threads = unit.threads or cpu_count()
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        else:
            torch.set_num_threads(threads)
        name = check_backend("onnxruntime" if unit.provider else "auto", self._device, request.precision)
        self._backend = choose_backend(
            name, self._device, request.precision, dnn=request.model, required=bool(unit.provider),
            providers=(unit.provider,) if unit.provider else automatic_providers("auto", self._device),
        )  # fmt: skip
        origin = source_of(request.model)
        weights = request.weights or ("random" if origin is not None and origin.takes_weights else "default")
        source = load_network(request.model, weights=weights, size=request.size)
        width, height = source.input_size(request.model, request.size, "--size")
        self._module = source.network
        if weights == "random":
            balance(self._module, random_image(width, height))
        facts = {**hardware_facts(self._device), "backend": unit.provider or name}
        if self._device.type == "cpu":
            facts["threads"] = str(threads)
        #: Describes the network and the unit; without rows.
        self.table = BatchTable(
            model=request.model, unit=unit.name, precision=request.precision, shape=(3, height, width),
            parameters=sum(tensor.numel() for tensor in self._module.parameters()),
            device=", ".join(f"{key} {value}" for key, value in facts.items()),
        )  # fmt: skip
        self._stages: tuple[Stage, ...] = ()
        self._images, self._outputs = torch.empty(0), tuple[Tensor, ...]()

    def prepare(self, batch: int) -> tuple[OutputForm, ...]:
        """Compile the network for this batch size, in place of the one before. Raises what the backend raises, and
        UnitError for a network whose outputs are not per image.
        """
        self._stages = ()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        images = self._random_images(batch)
        job = cut_module(copy.deepcopy(self._module), (images,), 1, fold_batch_norm=True)
        self._stages = self._backend.prepare(job, (images,), self._device)
        with torch.inference_mode():
            outputs = run_stages(self._stages, (images.to(self._device),))
        for index, output in enumerate(outputs):
            if not output.ndim or len(output) != batch:
                raise UnitError(
                    f"{self.table.model} cannot be split by images: output {index} for {batch} images has the shape "
                    f"{tuple(output.shape)}; its first axis must be {batch}"
                )
        return tuple(OutputForm(tuple(output.shape[1:]), output.dtype) for output in outputs)

    def attach(self, images: Tensor, outputs: Tensors) -> None:
        """Set, once, the shared memory that `run` uses. CUDA copies registered memory at full speed."""
        if self._device.type == "cuda":
            for tensor in (images, *outputs):
                if int(error := torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)):
                    raise UnitError(f"cudaHostRegister of {tensor.nbytes} bytes failed: {error}")
        self._images, self._outputs = images, outputs

    def run(self, first: int, count: int) -> tuple[int, int, Times]:
        """Run a range of the attached images: begin and end, of time.monotonic_ns, and the times in between.

        count: the batch size that was prepared last.
        """
        begin = time.monotonic_ns()
        part = slice(first, first + count)
        times = self._timed(self._images[part], tuple(output[part] for output in self._outputs))
        return begin, time.monotonic_ns(), times

    def measure(self, batch: int, samples: int, transfer: bool = False) -> list[Times]:
        """Times of runs of one batch size; with `transfer`, of copying the images to the unit and back instead.

        Raises what `prepare` raises, and UnitError for outputs with NaN or infinite values.
        """
        images = self._random_images(batch)
        outputs: Tensors = (torch.empty_like(images),)
        if not transfer:
            outputs = tuple(torch.empty(batch, *form.shape, dtype=form.dtype) for form in self.prepare(batch))
        if self._device.type == "cuda":
            outputs = tuple(output.pin_memory() for output in outputs)
        found = [self._timed(images, outputs, transfer=transfer) for _ in range(_WARM_UP + samples)]
        for index, output in enumerate(outputs):
            if not bool(output.isfinite().all()):
                raise UnitError(f"output {index} for {batch} random images has NaN or infinite values")
        return found[_WARM_UP:]

    def _random_images(self, batch: int) -> Tensor:
        """(batch, 3, height, width) float32, in pinned memory for a GPU."""
        images = torch.rand(batch, *self.table.shape, generator=torch.Generator().manual_seed(0))
        return images.pin_memory() if self._device.type == "cuda" else images

    def _timed(self, images: Tensor, outputs: Tensors, *, transfer: bool = False) -> Times:
        """Run the prepared network and fill `outputs`; with `transfer`, copy the images to them by way of the unit."""
        began = time.perf_counter()
        with torch.inference_mode():
            marks = [self._mark()]
            image = images.to(self._device, non_blocking=True, copy=transfer)
            marks.append(self._mark())
            results = (image,) if transfer else run_stages(self._stages, (image,))
            marks.append(self._mark())
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result, non_blocking=True)
            marks.append(self._mark())
        if self._device.type == "cuda":
            marks[-1].synchronize()
        total_ms = 1e3 * (time.perf_counter() - began)
        input_ms, compute_ms, output_ms = itertools.starmap(self._between_ms, itertools.pairwise(marks))
        return Times(input_ms, compute_ms, output_ms, total_ms)

    def _mark(self) -> Any:
        """A moment on the device: on a GPU an event on its stream."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between_ms(self, before: Any, after: Any) -> float:
        return float(1e3 * (after - before) if self._device.type == "cpu" else before.elapsed_time(after))


_network: Network


def start() -> None:
    """Initialize the process: Ctrl-C is the command's affair, and the process does not outlive the command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # of libraries about each other; what concerns the user is logged
    end_with_parent()


def load(unit: Unit, request: NetworkRequest) -> BatchTable:
    """Load the network of this process, and return its table without rows. Raises as `call`."""
    global _network
    with _picklable_errors():
        _network = Network(unit, request)
        return _network.table


def call(method: Callable[Concatenate[Network, ...], R], *args: Any) -> R:
    """Call a method of the network of this process. Raises MemoryError or UnitError."""
    with _picklable_errors():
        return method(_network, *args)


@contextlib.contextmanager
def _picklable_errors() -> Iterator[None]:
    """Raise MemoryError or UnitError in place of exceptions that might not survive the way back to the command."""
    try:
        yield
    except Exception as error:
        text = summarize_error(error)
        # PyTorch's CPU allocator and ONNX Runtime have no exception type for a lack of memory.
        shortage = isinstance(error, MemoryError) or "can't allocate memory" in text or "bad_alloc" in text
        raise (MemoryError if shortage or is_out_of_memory(error) else UnitError)(text) from error
