"""One training step of a network, without communication or with one of two ways to average gradients."""

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
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, *shape[1:], generator=generator).to(device)
    if images.is_cuda:
        images = images.to(memory_format=torch.channels_last)
    return Batch(images, torch.randint(0, 1 << 30, (count,), generator=generator).to(device))


def loss_of(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy for one (B, classes) output, otherwise the sum of the mean squares of all outputs."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if len(leaves) == 1 and leaves[0].dim() == 2 and len(leaves[0]) == len(batch.labels):
        return F.cross_entropy(leaves[0].float(), batch.labels % leaves[0].shape[1])
    return torch.stack([leaf.float().square().mean() for leaf in leaves]).sum()


def loss_in(network: nn.Module, batch: Batch, precision: str) -> Tensor:
    """The loss of a forward pass, with autocast to `precision`."""
    with autocast(batch.images.device, precision):
        outputs = network(batch.images)
    return loss_of(outputs, batch)


class Replica:
    """A network with one optimizer per layer (SGD with momentum: in Kim 2020 each layer updates itself).

    A step discards the old gradients, runs the forward and the backward pass, and updates layer by layer, in the order
    in which the gradients were computed. With method `layers`, the update of a layer waits only for its own reduction.
    """

    def __init__(self, network: nn.Module, precision: str = "fp32", bucket_mib: float | None = None) -> None:
        """bucket_mib: size of the buckets of DDP, which then wraps the network; None: methods `alone` and `layers`."""
        self.network = network
        self.layers = Layers(network)
        self._precision = precision
        self._parameters = [parameter for parameters in self.layers.parameters for parameter in parameters]
        self._optimizers = {
            number: torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=0.9)
            for number, parameters in enumerate(self.layers.parameters)
            if parameters
        }
        self.device = self._parameters[0].device
        self._launch_delay = LaunchDelay() if self.device.type == "cuda" else None
        self._reduction = LayerReduction(self.layers.parameters) if bucket_mib is None else None
        self._ddp = self._with_buckets(bucket_mib) if bucket_mib is not None else None
        self._recorder: Recorder | None = None
        self._stamps: dict[Method, int] = {}  # time stamps of a whole step
        #: Layers in the order in which their gradients are complete, after the first step.
        self.order: list[int] = [number for number in reversed(range(len(self.layers))) if number in self._optimizers]
        #: Layers and bytes of each bucket of DDP in the last step, in the order of the reductions.
        self.buckets: list[tuple[tuple[int, ...], int]] = []

    def forward(self, batch: Batch) -> Tensor:
        """Run a forward pass and return the loss."""
        return loss_in(self._ddp or self.network, batch, self._precision)

    def wall_step(self, batch: Batch, method: Method) -> float:
        """Seconds of one step by the host's clock, from its first launch until its last kernel has finished."""
        self._recorder = None
        self._synchronize()
        started = time.perf_counter()
        self.run(batch, method, _ignore_switch, lambda loss: None)
        self._synchronize()
        return time.perf_counter() - started

    def step(self, batch: Batch, method: Method) -> float:
        """Seconds of one step; on a GPU without gaps for launching, otherwise the same as :meth:`wall_step`."""
        if self._launch_delay is None:
            return self.wall_step(batch, method)
        self._recorder = None
        recorder = Recorder(self.device)
        self._synchronize()
        with self._launch_delay.applied():
            recorder.switch(0, "forward")
            self.run(batch, method, _ignore_switch, lambda loss: None)
            recorder.finish()
        return recorder.timeline().total_s

    def traced_step(self, batch: Batch, method: Method) -> Timeline:
        """A step like :meth:`step`, with time stamps at every change of layer or phase.

        On a GPU it joins several steps, each with time stamps for a part, because launching with all time stamps would
        take longer than computing.
        """
        if self._launch_delay is None:
            return self._recorded(batch, method, None).timeline()
        count = self._stamps.get(method)
        if count is None:
            count = self._stamps[method] = self._recorded(batch, method, range(0)).count
        return joined([self._recorded(batch, method, window) for window in windows(count, _STAMPS)])

    def _recorded(self, batch: Batch, method: Method, window: range | None) -> Recorder:
        """Run one step with time stamps. window: see :class:`Recorder`."""
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
        self._backward(batch, method, _ignore_switch, lambda loss: None, None)
        if method == "layers":
            assert self._reduction is not None
            for layer in self._reduction.order:
                self._reduction.wait(layer)
        return [parameter.grad.clone() for parameter in self._parameters if parameter.grad is not None]

    def launch(self, batch: Batch) -> None:
        """Launch a step without communication; on a GPU it may still be running on return."""
        self.run(batch, "alone", _ignore_switch, lambda loss: None)

    def run(
        self,
        batch: Batch,
        method: Method,
        switch: Switch,
        add_backward: Callable[[Tensor], None],
        recorder: Recorder | None = None,
    ) -> None:
        """Run one step. switch, add_backward: see :meth:`Layers.followed`. recorder: records the messages."""
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
            """DDP's default reduction, with time stamps."""
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

        reduce.__annotations__.clear()  # DDP compares annotations with types, but here they are strings
        ddp.register_comm_hook(None, reduce)
        return ddp

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _ignore_switch(layer: int, phase: Phase | None) -> None:
    """A switch for steps without time stamps."""
