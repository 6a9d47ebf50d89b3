"""Averages gradients over the processes layer by layer: each layer's all-reduce begins as soon as its backward ends.

This is the method of Kim (2020): communication is part of the layer, like its forward and backward pass. No bucket
waits for several layers, and no other component takes part in the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from multi_dnn_ros.profiling.training.trace import Recorder


class LayerReduction:
    """All-reduce of the gradients of each layer.

    layers: trained parameters of each layer; every one must get a gradient in every step. Layers, shapes and the order
    of the backward pass must be equal on all processes. In each step, call :meth:`begin`, run the backward pass, then
    call :meth:`wait` for each layer of :attr:`order`.
    """

    def __init__(self, layers: Sequence[Sequence[nn.Parameter]]) -> None:
        self._layers = layers
        self._trained: list[int] = [number for number, parameters in enumerate(layers) if parameters]
        self._missing = {number: len(layers[number]) for number in self._trained}
        self._pending: dict[int, _Flight] = {}
        self._recorder: Recorder | None = None
        self._enabled = False
        self._stream: Any = None
        #: Layers in the order in which their backward passes ended.
        self.order: list[int] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))
            for number in self._trained
            for parameter in layers[number]
        ]

    def begin(self, recorder: Recorder | None = None, *, enabled: bool = True) -> None:
        """Prepare a backward pass. recorder: records the messages. enabled: False leaves the gradients unreduced."""
        self._recorder, self._enabled = recorder, enabled
        self._missing = {number: len(self._layers[number]) for number in self._trained}
        self.order = []

    def wait(self, layer: int) -> None:
        """Wait until the layer's gradients (`.grad`) are the mean over the processes; on a GPU, the stream waits."""
        if (flight := self._pending.pop(layer, None)) is not None:
            flight.wait()

    def check(self) -> None:
        """Raise RuntimeError if a layer got no gradient in the backward pass: other processes would wait for it."""
        missing = [number for number, count in self._missing.items() if count]
        if missing:
            raise RuntimeError(f"{len(missing)} layers got no gradient in this step; the first is number {missing[0]}")

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, layer: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            self._missing[layer] -= 1
            if self._missing[layer] == 0:
                self.order.append(layer)
                if self._enabled:
                    if self._recorder is not None:
                        self._recorder.switch(layer, "reduce")
                    self._pending[layer] = self._launch(layer)

        return hook

    def _launch(self, layer: int) -> _Flight:
        buffer, views = _one_buffer([parameter.grad for parameter in self._layers[layer] if parameter.grad is not None])
        if buffer.is_cuda and self._stream is None:
            self._stream = torch.cuda.Stream(buffer.device)
        flight = _Flight(buffer, self._recorder, (layer,), self._stream)
        for parameter, view in zip(self._layers[layer], views, strict=True):
            parameter.grad = view
        return flight


class _Flight:
    """One all-reduce under way."""

    def __init__(self, buffer: Tensor, recorder: Recorder | None, layers: tuple[int, ...], stream: Any) -> None:
        self._work: Any = None
        count = buffer.numel() * buffer.element_size()
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(buffer.device))
            with torch.cuda.stream(stream):
                stamps = recorder.launch(layers, count) if recorder is not None else None
                dist.all_reduce(buffer)
                if recorder is not None and stamps is not None:
                    stamps.append(recorder.stamp())
                self._done = stream.record_event()
            return
        stamps = recorder.launch(layers, count) if recorder is not None else None
        self._work = dist.all_reduce(buffer, async_op=True)
        if recorder is not None and stamps is not None:
            append_end(self._work.get_future(), recorder, stamps)

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        else:
            torch.cuda.current_stream().wait_event(self._done)


def append_end(future: Any, recorder: Recorder, stamps: list[Any]) -> None:
    """Append a time stamp once the operation of `future` ends."""
    future.add_done_callback(lambda _: stamps.append(recorder.stamp()))


def _one_buffer(gradients: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copy the gradients, divided by the number of processes, into one buffer; returns it and a view per gradient.

    A single dense gradient is divided in place and is its own buffer. Memory layouts are kept.
    """
    share = 1.0 / dist.get_world_size()
    if len(gradients) == 1 and _is_dense(gradients[0]):
        return gradients[0].mul_(share), list(gradients)
    buffer = gradients[0].new_empty(sum(gradient.numel() for gradient in gradients))
    views, first = [], 0
    for gradient in gradients:
        strides = gradient.stride() if _is_dense(gradient) else torch.empty(gradient.shape, device="meta").stride()
        view = buffer.as_strided(gradient.shape, strides, first)
        torch.mul(gradient, share, out=view)
        views.append(view)
        first += gradient.numel()
    return buffer, views


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
