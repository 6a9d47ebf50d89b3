"""One training step of a network, alone or with one of the two ways to average gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from multi_dnn_ros.profiling.training.launch_delay import LaunchDelay
from multi_dnn_ros.profiling.training.layers import Layers, Phase, Switch
from multi_dnn_ros.profiling.training.reduction import LayerReduction, append_end
from multi_dnn_ros.profiling.training.trace import Recorder, Timeline, joined, windows
from multi_dnn_ros.training.precision import autocast

#: alone: no communication. layers: each layer reduces its gradients. ddp: DistributedDataParallel with its buckets.
Method = Literal["alone", "layers", "ddp"]

#: Time stamps per traced step on a GPU.
_STAMPS = 128
_LEARNING_RATE = 1e-6  # the values of the weights do not matter, but must stay finite


@dataclass(frozen=True)
class Batch:
    """images: (B, 3, h, w) on the device. labels: (B,), for outputs that are class scores."""

    images: Tensor
    labels: Tensor


def make_batch(shape: Sequence[int], count: int, seed: int, device: torch.device) -> Batch:
    """Random images and labels (modulo the number of classes)."""
    dice = torch.Generator().manual_seed(seed)
    images = torch.randn(count, *shape[1:], generator=dice).to(device)
    if images.is_cuda:
        images = images.to(memory_format=torch.channels_last)
    return Batch(images, torch.randint(0, 1 << 30, (count,), generator=dice).to(device))


def loss_of(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy for one (B, classes) output, otherwise the sum of the mean squares of all outputs."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if len(leaves) == 1 and leaves[0].dim() == 2 and len(leaves[0]) == len(batch.labels):
        return F.cross_entropy(leaves[0].float(), batch.labels % leaves[0].shape[1])
    return torch.stack([leaf.float().square().mean() for leaf in leaves]).sum()


def loss_in(network: nn.Module, batch: Batch, precision: str) -> Tensor:
    """The loss of a forward pass; on a GPU in mixed precision."""
    with autocast(batch.images.device, precision):
        outputs = network(batch.images)
    return loss_of(outputs, batch)


class Replica:
    """A network with an optimizer per layer (SGD with momentum, as in the layers' own update of Kim 2020).

    A step forgets the old gradients, runs forward and backward, and updates layer by layer, in the order in which the
    gradients were computed. With method `layers` a layer is updated as soon as its own reduction ends.
    """

    def __init__(self, network: nn.Module, precision: str = "fp32", bucket_mib: float | None = None) -> None:
        """bucket_mib: wraps the network with DDP, with buckets of this size; None: methods `alone` and `layers`."""
        self.network = network
        self.layers = Layers(network)
        self._precision = precision
        self._parameters = [parameter for own in self.layers.parameters for parameter in own]
        self._optimizers = {
            number: torch.optim.SGD(own, lr=_LEARNING_RATE, momentum=0.9)
            for number, own in enumerate(self.layers.parameters)
            if own
        }
        self.device = self._parameters[0].device
        self._launch_delay = LaunchDelay() if self.device.type == "cuda" else None
        self._reduction = LayerReduction(self.layers.parameters) if bucket_mib is None else None
        self._ddp = self._with_buckets(bucket_mib) if bucket_mib is not None else None
        self._recorder: Recorder | None = None
        self._stamps: dict[Method, int] = {}  # time stamps of a whole step
        #: Layers in the order in which their gradients are complete, after the first step.
        self.order: list[int] = [number for number in reversed(range(len(self.layers))) if number in self._optimizers]
        #: Layers of each bucket of DDP, in the order of their reductions, and bytes; of the last step.
        self.buckets: list[tuple[tuple[int, ...], int]] = []

    def forward(self, batch: Batch) -> Tensor:
        """The loss."""
        return loss_in(self._ddp or self.network, batch, self._precision)

    def wall_step(self, batch: Batch, method: Method) -> float:
        """Seconds of one step by the host's clock, from its first launch until its last kernel has finished."""
        self._recorder = None
        self._synchronize()
        started = time.perf_counter()
        self.run(batch, method, _nowhere, lambda loss: None)
        self._synchronize()
        return time.perf_counter() - started

    def step(self, batch: Batch, method: Method) -> float:
        """Seconds of one step: on a GPU its computation without gaps for launching, otherwise as :meth:`wall_step`."""
        if self._launch_delay is None:
            return self.wall_step(batch, method)
        self._recorder = None
        recorder = Recorder(self.device)
        self._synchronize()
        with self._launch_delay.applied():
            recorder.switch(0, "forward")
            self.run(batch, method, _nowhere, lambda loss: None)
            recorder.finish()
        return recorder.timeline().total_s

    def traced_step(self, batch: Batch, method: Method) -> Timeline:
        """As :meth:`step`, with time stamps at every change of layer or phase.

        On a GPU several steps, of which each stamps a part: launching with all time stamps would take longer than
        computing.
        """
        if self._launch_delay is None:
            return self._recorded(batch, method, None).timeline()
        count = self._stamps.get(method)
        if count is None:
            count = self._stamps[method] = self._recorded(batch, method, range(0)).count
        return joined([self._recorded(batch, method, window) for window in windows(count, _STAMPS)])

    def _recorded(self, batch: Batch, method: Method, window: range | None) -> Recorder:
        """One step. window: see :class:`Recorder`."""
        recorder = self._recorder = Recorder(self.device, window)
        with self.layers.followed(recorder.switch) as add_backward:
            self._synchronize()
            with self._launch_delay.applied() if self._launch_delay is not None else nullcontext():
                self.run(batch, method, recorder.switch, add_backward, recorder)
                recorder.finish()
            self._synchronize()
        self._recorder = None
        return recorder

    def gradients(self, batch: Batch, method: Method) -> list[Tensor]:
        """Gradients of one step, without an update, in the order of the layers."""
        self._backward(batch, method, _nowhere, lambda loss: None, None)
        if method == "layers":
            assert self._reduction is not None
            for layer in self._reduction.order:
                self._reduction.wait(layer)
        return [parameter.grad.clone() for parameter in self._parameters if parameter.grad is not None]

    def launch(self, batch: Batch) -> None:
        """A step without communication, which may still be running on a GPU afterwards."""
        self.run(batch, "alone", _nowhere, lambda loss: None)

    def run(
        self,
        batch: Batch,
        method: Method,
        switch: Switch,
        add_backward: Callable[[Tensor], None],
        recorder: Recorder | None = None,
    ) -> None:
        """One step. switch, add_backward: as of :meth:`Layers.followed`. recorder: gets the messages."""
        switch(0, "optimizer")
        self._backward(batch, method, switch, add_backward, recorder)
        for layer in self.order:
            if method == "layers":
                assert self._reduction is not None
                switch(layer, "wait")
                self._reduction.wait(layer)
            switch(layer, "optimizer")
            self._optimizers[layer].step()

    def close(self) -> None:
        """Remove the hooks from the network."""
        if self._reduction is not None:
            self._reduction.close()

    def _backward(
        self,
        batch: Batch,
        method: Method,
        switch: Switch,
        add_backward: Callable[[Tensor], None],
        recorder: Recorder | None,
    ) -> None:
        if (method == "ddp") != (self._ddp is not None):
            raise ValueError(f"this replica cannot run method '{method}'")
        for parameter in self._parameters:
            parameter.grad = None
        self.buckets = []
        if self._reduction is not None:
            self._reduction.begin(recorder, enabled=method == "layers")
        switch(0, "forward")
        loss = self.forward(batch)
        add_backward(loss)
        loss.backward()
        if self._reduction is not None:
            self._reduction.check()
            self.order = self._reduction.order

    def _with_buckets(self, bucket_mib: float) -> nn.Module:
        from torch.nn.parallel import DistributedDataParallel

        ddp = DistributedDataParallel(
            self.network,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=bucket_mib,
            broadcast_buffers=False,
        )

        def reduce(state: object, bucket: Any) -> Any:
            """What DDP does by itself, with time stamps."""
            layers = tuple(dict.fromkeys(self.layers.owner(parameter) for parameter in bucket.parameters()))
            buffer = bucket.buffer().div_(dist.get_world_size())
            count = buffer.numel() * buffer.element_size()
            self.buckets.append((layers, count))
            recorder = self._recorder
            stamps = recorder.launch(layers, count) if recorder is not None else None
            work = dist.all_reduce(buffer, async_op=True)
            assert work is not None
            future = work.get_future()
            if recorder is not None and stamps is not None:
                append_end(future, recorder, stamps)
            return future.then(lambda done: done.value()[0])

        reduce.__annotations__.clear()  # DDP compares them with its own types, and here they are strings
        ddp.register_comm_hook(None, reduce)
        return ddp

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _nowhere(layer: int, phase: Phase | None) -> None:
    """For steps without time stamps."""
