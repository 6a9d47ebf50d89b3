"""Predicts the duration of a distributed training step from layer times, interconnect, and mutual slowdown.

A step is simulated: the computation runs in order, reductions one at a time in the order of their launches. While a
reduction and the computation run at the same time, each takes longer by its factor in
:class:`multi_dnn_ros.profiling.training.interconnect.Overlap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.profiling.training.interconnect import Overlap, Topology

_TINY_S = 1e-15


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of a layer in one process without communication, and the size of its gradients."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Task:
    """A part of the computation. after: index of the message that must end before it, if any. releases: number of
    messages launched at its end.
    """

    seconds: float
    after: int | None = None
    releases: int = 0


def simulate(tasks: Sequence[Task], messages: Sequence[float], overlap: Overlap) -> float:
    """Seconds until all tasks and all messages are done, each in their order. messages: seconds of each message.

    Raises ValueError if a task waits for a message that no earlier task launches.
    """
    now, task, message, launched = 0.0, 0, 0, 0
    left = tasks[0].seconds if tasks else 0.0
    message_left = messages[0] if messages else 0.0
    while task < len(tasks) or message < len(messages):
        after = tasks[task].after if task < len(tasks) else None
        computing = task < len(tasks) and (after is None or after < message)
        communicating = message < min(launched, len(messages))
        if not computing and not communicating:
            raise ValueError(f"task {task} waits for message {after}, which no earlier task launches")
        slower = overlap.compute if computing and communicating else 1.0
        longer = overlap.communication if computing and communicating else 1.0
        spans = ([left * slower] if computing else []) + ([message_left * longer] if communicating else [])
        span = min(spans)
        now += span
        if computing:
            left -= span / slower
        if communicating:
            message_left -= span / longer
        if computing and left <= _TINY_S:
            launched += tasks[task].releases
            task += 1
            left = tasks[task].seconds if task < len(tasks) else 0.0
        if communicating and message_left <= _TINY_S:
            message += 1
            message_left = messages[message] if message < len(messages) else 0.0
    return now


@dataclass(frozen=True)
class StepModel:
    """Model of a step. layers: in the order in which their backward passes end. buckets: for each message of DDP, the
    indices of its layers in `layers`.

    launch_s: time by which launching an all-reduce delays the computation.
    """

    layers: tuple[LayerTimes, ...]
    buckets: tuple[tuple[int, ...], ...] = ()
    overlap: Overlap = field(default_factory=Overlap)
    launch_s: float = 0.0

    def alone_s(self) -> float:
        """Duration of a step of one process."""
        return sum(layer.forward_s + layer.backward_s + layer.optimizer_s for layer in self.layers)

    def layers_s(self, topology: Topology, processes: int) -> float:
        """Duration of a step in which each layer reduces its own gradients."""
        if processes < 2:
            return self.alone_s()
        tasks = [Task(sum(layer.forward_s for layer in self.layers))]
        messages: list[float] = []
        updates = []
        for layer in self.layers:
            sends = layer.gradient_bytes > 0
            tasks.append(Task(layer.backward_s + sends * self.launch_s, releases=int(sends)))
            updates.append(Task(layer.optimizer_s, after=len(messages) if sends else None))
            if sends:
                messages.append(topology.seconds(layer.gradient_bytes, processes))
        return simulate([*tasks, *updates], messages, self.overlap)

    def ddp_s(self, topology: Topology, processes: int) -> float:
        """Duration of a step with DDP, which updates all layers after the last bucket."""
        if processes < 2:
            return self.alone_s()
        sizes = [sum(self.layers[index].gradient_bytes for index in bucket) for bucket in self.buckets]
        # A bucket is launched once its last gradient is computed and all buckets before it have been launched.
        last, ends = -1, []
        for bucket in self.buckets:
            last = max(last, *bucket)
            ends.append(last)
        tasks = [Task(sum(layer.forward_s for layer in self.layers))]
        for index, layer in enumerate(self.layers):
            count = ends.count(index)
            tasks.append(Task(layer.backward_s + count * self.launch_s, releases=count))
        update_s = sum(layer.optimizer_s for layer in self.layers)
        tasks.append(Task(update_s, after=len(sizes) - 1 if sizes else None))
        return simulate(tasks, [topology.seconds(size, processes) for size in sizes], self.overlap)


@dataclass(frozen=True)
class Scaling:
    """Prediction for `processes`, each with its own batch. efficiency: images/s per process, relative to one."""

    processes: int
    hosts: int
    layers_s: float
    ddp_s: float
    layers_efficiency: float
    ddp_efficiency: float


def predict_scaling(
    model: StepModel,
    topology: Topology,
    counts: Sequence[int],
    progress: Callable[[], None] = lambda: None,
) -> list[Scaling]:
    """One row per number of processes."""
    rows = []
    alone = model.alone_s()
    for count in counts:
        layers_s, ddp_s = model.layers_s(topology, count), model.ddp_s(topology, count)
        hosts = -(-count // topology.per_host)
        rows.append(Scaling(count, hosts, layers_s, ddp_s, alone / layers_s, alone / ddp_s))
        progress()
    return rows
