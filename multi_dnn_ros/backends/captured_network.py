"""A whole network for a GPU in one launch: its stages as segments of one CUDA graph, with a gate before each."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.branched_graph import branches_of
from multi_dnn_ros.backends.capture import StreamGraph, capture_graph
from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.static_stages import copy_to, split_rows, stack_inputs
from multi_dnn_ros.common.errors import summarize_error

log = logging.getLogger(__name__)

#: Outputs begin at multiples of this in the packed tensor; a multiple of the size of every dtype.
_ALIGNMENT = 16
#: Reduces the raw outputs of one image to what is decoded on the CPU. Shapes must not depend on values.
Reduce = Callable[[Tensors], Tensors]


class Network(Protocol):
    """A network for `batch` images. segments: number of jobs at whose borders it can be held back."""

    batch: int
    segments: int

    def load(self, images: Iterable[Tensors]) -> Tensors:
        """The inputs for up to `batch` images, on the current stream. Each image is read before the next one is taken.

        Raises what `images` raises.
        """
        ...

    def launch(self, inputs: Tensors) -> torch.Tensor:
        """Enqueue the network on the current stream. Returns the outputs of all images, reduced, as (N,) uint8."""
        ...

    def unpack(self, host: torch.Tensor) -> list[Tensors]:
        """The outputs of each image, as views of a copy of what `launch` returned."""
        ...


class Packing:
    """Puts the reduced outputs of all images into one tensor, so that they need one copy to the host.

    batch: number of images. reduce: None: nothing is reduced.
    """

    def __init__(self, batch: int, reduce: Reduce | None) -> None:
        self._batch = batch
        self._reduce = reduce
        self._layout: list[list[tuple[int, torch.Size, torch.dtype]]] = []

    def pack(self, outputs: Tensors) -> torch.Tensor:
        """(N,) uint8. outputs: raw, of all images."""
        layout: list[list[tuple[int, torch.Size, torch.dtype]]] = []
        parts: list[torch.Tensor] = []
        offset = 0
        for row in split_rows(outputs, self._batch):
            layout.append([])
            for tensor in row if self._reduce is None else self._reduce(row):
                layout[-1].append((offset, tensor.shape, tensor.dtype))
                flat = tensor.contiguous().reshape(-1).view(torch.uint8)
                padding = -flat.numel() % _ALIGNMENT
                parts += [flat, flat.new_zeros(padding)] if padding else [flat]
                offset += flat.numel() + padding
        self._layout = layout
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=outputs[0].device)

    def unpack(self, host: torch.Tensor) -> list[Tensors]:
        """The tensors of each image in a copy of the packed ones."""
        return [
            tuple(
                host[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
                for offset, shape, dtype in row
            )
            for row in self._layout
        ]


class EagerNetwork:
    """A network whose stages are launched one by one; for backends and networks that cannot be captured."""

    def __init__(self, stages: Sequence[Stage], batch: int, reduce: Reduce | None) -> None:
        self.batch = batch
        self.segments = len(stages)
        self._stages = stages
        self._packing = Packing(batch, reduce)
        self.unpack = self._packing.unpack

    def load(self, images: Iterable[Tensors]) -> Tensors:
        """See Network."""
        rows = [tuple(tensor.clone() for tensor in image) for image in images]
        rows += rows[-1:] * (self.batch - len(rows))
        return stack_inputs(rows, self._stages[0])

    def launch(self, inputs: Tensors) -> torch.Tensor:
        """See Network."""
        return self._packing.pack(run_stages(self._stages, inputs))


class Captured:
    """Stages as one CUDA graph.

    inputs, outputs: the memory that it reads and writes. stages: as prepared, uncaptured. originals: the stages whose
    results the graph must have. memory: its inputs, where the previous graph leaves them; None: memory of its own.
    streams: number of streams on which branches run. pool: of memory; graphs of one pool must not run at the same time.
    gate: where the graph can be held back, before each stage; None: nowhere. Raises what the capture raises, and
    ValueError if results differ by more than `tolerance`.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        originals: Sequence[Stage],
        inputs: Tensors,
        pool: Any,
        stream: torch.cuda.Stream,
        tolerance: float,
        *,
        memory: Tensors | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.stages = tuple(stages)  # kept alive: the graph reads their parameters
        self.streams = max((each.plan.streams for stage in stages if (each := branches_of(stage))), default=1)
        self.inputs = tuple(tensor.clone() for tensor in inputs) if memory is None else memory
        self.outputs: Tensors = ()
        self._gate = gate
        # The memory of another graph may be a view of a parameter, which noise must not overwrite.
        image = noise_like(inputs) if memory is None else inputs
        expected = tuple(tensor.clone() for tensor in run_stages(originals, image))
        stream.wait_stream(torch.cuda.current_stream())
        self._graph = self._captured(pool, stream)
        check_agreement(self(image), expected, tolerance)

    def _captured(self, pool: Any, stream: torch.cuda.Stream) -> StreamGraph:
        return capture_graph(self._run, pool, stream)

    def _run(self) -> None:
        carried = self.inputs
        for stage in self.stages:
            if self._gate is not None:
                self._gate.wait()
            carried = stage(carried)
        self.outputs = carried

    def __call__(self, carried: Tensors) -> Tensors:
        """The raw outputs, as a stage returns them."""
        copy_to(self.inputs, carried)
        self._graph.replay()
        return self.outputs


class CapturedNetwork(Captured):
    """All stages of a network as one CUDA graph. reduce: see Packing; captured too, if that is possible."""

    def __init__(
        self,
        stages: Sequence[Stage],
        originals: Sequence[Stage],
        inputs: Tensors,
        pool: Any,
        stream: torch.cuda.Stream,
        tolerance: float,
        *,
        reduce: Reduce | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.batch = len(inputs[0])
        self.segments = len(stages)
        self._packing = Packing(self.batch, reduce)
        self.unpack = self._packing.unpack
        self._packed: torch.Tensor | None = None
        self._reduces = reduce is not None
        super().__init__(stages, originals, inputs, pool, stream, tolerance, gate=gate)
        self._rows = [tuple(tensor[row : row + 1] for tensor in self.inputs) for row in range(self.batch)]

    def _captured(self, pool: Any, stream: torch.cuda.Stream) -> StreamGraph:
        def run() -> None:
            self._run()
            self._packed = self._packing.pack(self.outputs)

        try:
            return capture_graph(run, pool, stream)
        except Exception as error:
            if not self._reduces or is_out_of_memory(error):
                raise
            torch.cuda.synchronize(stream.device)
            graph = capture_graph(self._run, pool, stream)
            self._packed = None
            log.warning("decoding on the device is not captured and runs eagerly: %s", summarize_error(error))
            return graph

    def load(self, images: Iterable[Tensors]) -> Tensors:
        """See Network. Rows without an image keep those of an earlier inference."""
        copy = enqueue_on(self.inputs[0].device).copy
        for row, image in zip(self._rows, images, strict=False):
            for target, tensor in zip(row, image, strict=True):
                if target.dtype is tensor.dtype and target.is_contiguous() and tensor.is_contiguous():
                    copy(target, tensor)
                else:
                    target.copy_(tensor, non_blocking=True)
        return self.inputs

    def launch(self, inputs: Tensors) -> torch.Tensor:
        """See Network."""
        self(inputs)
        return self._packing.pack(self.outputs) if self._packed is None else self._packed


def as_network(stages: Sequence[Stage], batch: int, reduce: Reduce | None) -> Network:
    """The network that consists of prepared stages for `batch` images."""
    first = stages[0]
    if len(stages) == 1 and isinstance(first, CapturedNetwork):
        return first
    return EagerNetwork(stages, batch, reduce)
