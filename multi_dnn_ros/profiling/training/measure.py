"""What each process of a distributed training profile does: measures its steps, layers and messages."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.planning.device import DeviceLimits, limits_of
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.network import load
from multi_dnn_ros.profiling.training.interconnect import (
    Overlap,
    Sample,
    measure_all_reduce,
    measure_overlap,
    message_sizes,
)
from multi_dnn_ros.profiling.training.layers import Phase, check_trainable
from multi_dnn_ros.profiling.training.processes import Member, Report
from multi_dnn_ros.profiling.training.step import Batch, Method, Replica, loss_in, make_batch
from multi_dnn_ros.profiling.training.trace import Timeline, exposed_by_message
from multi_dnn_ros.profiling.training.work import Work, WorkCounter
from multi_dnn_ros.training.distributed import wait_for_all

_WARM_UP = 2
_Step = TypeVar("_Step")


@dataclass(frozen=True)
class Request:
    """What to measure. batch: images per process. threads: PyTorch threads per process. repeats: measured rounds.

    sweep_bytes: size of the largest message. limits: file of measured device limits; None: measured and not stored.
    """

    model: str
    weights: str = ""
    num_classes: int = 0
    size: tuple[int, int] | None = None
    batch: int = 8
    precision: str = "fp32"
    repeats: int = 10
    threads: int = 1
    seed: int = 0
    bucket_mib: float = 25.0
    sweep_bytes: int = 1 << 28
    limits: Path | None = None


@dataclass(frozen=True)
class Times:
    """Times of one method. steps_s: steps without time stamps, on a GPU without gaps for launching. walls_s: steps with
    these gaps, by the host's clock. traced: the step of median duration among those with time stamps. seconds: by layer
    and phase. exposed_s: by layer. The last two are means of the faster half of the traced steps, so that they add up.
    """

    steps_s: tuple[float, ...]
    walls_s: tuple[float, ...]
    traced: Timeline
    seconds: dict[tuple[int, Phase], float]
    exposed_s: dict[int, float]

    @property
    def step_s(self) -> float:
        """Mean of the faster half of steps_s, because other work on the machine only makes steps longer."""
        return statistics.fmean(_faster_half(self.steps_s, float))

    @property
    def wall_s(self) -> float:
        """Mean of the faster half of walls_s."""
        return statistics.fmean(_faster_half(self.walls_s, float))


@dataclass(frozen=True)
class Measured:
    """Measurements of one process. work: by layer and phase. order: layers in the order in which their backward passes
    end. buckets: (layers, bytes) of each bucket of DDP.

    messages: all-reduces of the sweep. layer_messages: all-reduces of the sizes of the layers' gradients.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    parameters: tuple[int, ...]
    gradient_bytes: tuple[int, ...]
    unused: tuple[str, ...]
    shape: tuple[int, ...]
    limits: DeviceLimits
    target: str
    processes: int
    per_host: int
    work: dict[tuple[int, str], Work]
    times: dict[Method, Times]
    order: tuple[int, ...]
    buckets: tuple[tuple[tuple[int, ...], int], ...] = ()
    messages: tuple[Sample, ...] = ()
    layer_messages: tuple[Sample, ...] = ()
    overlap: Overlap = field(default_factory=Overlap)


def measure_training(member: Member, argument: Any, report: Report) -> list[Measured] | None:
    """All processes' measurements, on rank 0. argument: a Request. Raises ModelError if training is impossible."""
    request: Request = argument
    with torch_threads(request.threads):
        return _measure(member, request, report)


def _measure(member: Member, request: Request, report: Report) -> list[Measured] | None:
    device, several = member.device, member.processes > 1
    methods: tuple[Method, ...] = ("alone", "layers", "ddp") if several else ("alone",)
    sweep = message_sizes(request.sweep_bytes) if several else []
    total = 3 + len(sweep) + len(methods) * (request.repeats + _WARM_UP)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        report(min(done, total), total)

    network, shape = _network(request, member)
    batch = make_batch(shape, request.batch, request.seed * 1009 + member.rank, device)
    unused = check_trainable(request.model, network, lambda: loss_in(network, batch, request.precision))
    replicas = {"layers": Replica(network, request.precision)}
    if several:
        replicas["ddp"] = Replica(copy.deepcopy(network), request.precision, request.bucket_mib)
    step()
    work = count_work(replicas["layers"], batch)
    target = Target(device, "eager", Eager, "auto" if request.precision == "fp32" else request.precision)
    limits = _limits(target, request, member)
    step()
    samples = measure_all_reduce(sweep, device, step)
    layers = replicas["layers"].layers
    sizes = sorted({layers.gradient_bytes(number) for number in range(len(layers)) if layers.parameters[number]})
    layer_samples = measure_all_reduce(sizes, device, lambda: None) if several else []
    times = measure_steps(replicas, batch, methods, request.repeats, step)
    overlap = Overlap()
    if several:
        alone = replicas["layers"]
        overlap = measure_overlap(lambda: alone.launch(batch), device, samples)
    step()
    measured = Measured(
        layers.names, layers.kinds, tuple(sum(p.numel() for p in each) for each in layers.parameters),
        tuple(layers.gradient_bytes(number) for number in range(len(layers))),
        tuple(unused), shape, limits, target.name(),
        member.processes, member.per_host, work, times, tuple(replicas["layers"].order),
        tuple(replicas["ddp"].buckets) if several else (), tuple(samples), tuple(layer_samples), overlap,
    )  # fmt: skip
    for replica in replicas.values():
        replica.close()
    if not several:
        return [measured]
    everyone: list[Any] | None = [None] * member.processes if member.rank == 0 else None
    dist.gather_object(measured, everyone)
    return everyone


def _network(request: Request, member: Member) -> tuple[nn.Module, tuple[int, ...]]:
    """The network in training mode on the process's device, with the weights of rank 0."""
    loaded = load(request.model, weights=request.weights, num_classes=request.num_classes, size=request.size)
    network = loaded.module
    for part in network.modules():  # train() raises for exported programs
        part.training = True
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    if member.device.type == "cuda":
        network = network.to(member.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if member.processes > 1:
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor.detach(), src=0)
    return network, loaded.shape


def _limits(target: Target, request: Request, member: Member) -> DeviceLimits:
    """Limits of the device, measured by rank 0 while the other processes wait."""
    box: list[Any] = [limits_of(target, request.limits) if member.rank == 0 else None]
    if member.processes > 1:
        dist.broadcast_object_list(box, src=0)
    limits: DeviceLimits = box[0]
    return limits


def count_work(replica: Replica, batch: Batch) -> dict[tuple[int, str], Work]:
    """Work by layer and phase of one step without communication."""
    at: tuple[int, str] = (0, "forward")

    def switch(layer: int, phase: Phase | None) -> None:
        nonlocal at
        at = (layer, phase or "")

    counter = WorkCounter(lambda: at)
    with replica.layers.followed(switch) as add_backward, counter:
        replica.run(batch, "alone", switch, add_backward)
    return {key: work for key, work in counter.counted.items() if key[1]}


def measure_steps(
    replicas: dict[str, Replica], batch: Batch, methods: Sequence[Method], repeats: int, progress: Callable[[], None]
) -> dict[Method, Times]:
    """Measure rounds, each with a plain and a traced step of every method, so that a disturbance affects all alike.

    On a GPU each round also has a plain step that is timed by the host's clock.
    """
    plain: dict[Method, list[float]] = {method: [] for method in methods}
    walls: dict[Method, list[float]] = {method: [] for method in methods}
    traced: dict[Method, list[Timeline]] = {method: [] for method in methods}
    for turn in range(-_WARM_UP, repeats):
        for method in methods:
            replica = replicas["ddp" if method == "ddp" else "layers"]
            wait_for_all()
            seconds = wall = replica.step(batch, method)
            if replica.device.type == "cuda":
                wait_for_all()
                wall = replica.wall_step(batch, method)
            wait_for_all()
            timeline = replica.traced_step(batch, method)
            if turn >= 0:
                plain[method].append(seconds)
                walls[method].append(wall)
                traced[method].append(timeline)
            progress()
    return {method: _times(plain[method], walls[method], traced[method], method) for method in methods}


def _times(plain: Sequence[float], walls: Sequence[float], traced: Sequence[Timeline], method: Method) -> Times:
    fast = _faster_half(traced, lambda timeline: timeline.total_s)
    sums = [timeline.seconds() for timeline in fast]
    keys = {key for each in sums for key in each}
    # Means, because medians of layers that are disturbed in different steps would add up to too little.
    seconds = {key: statistics.fmean(each.get(key, 0.0) for each in sums) for key in keys}
    exposed: dict[int, float] = {}
    if method == "layers":
        exposed = {layer: value for (layer, phase), value in seconds.items() if phase == "wait"}
    elif method == "ddp":
        found = [_exposed_by_layer(timeline) for timeline in fast]
        layers = {layer for each in found for layer in each}
        exposed = {layer: statistics.fmean(each.get(layer, 0.0) for each in found) for layer in layers}
    median = sorted(traced, key=lambda timeline: timeline.total_s)[len(traced) // 2]
    return Times(tuple(plain), tuple(walls), median, seconds, exposed)


def _faster_half(steps: Sequence[_Step], seconds: Callable[[_Step], float]) -> list[_Step]:
    return sorted(steps, key=seconds)[: (len(steps) + 1) // 2]


def _exposed_by_layer(timeline: Timeline) -> dict[int, float]:
    """Exposed seconds of a DDP step, whose backward pass waits for the last bucket; layers share a bucket's delay."""
    if not timeline.messages:
        return {}
    since = max(message.start_s for message in timeline.messages)
    until = max(segment.end_s for segment in timeline.segments if segment.phase == "backward")
    found: dict[int, float] = {}
    for message, delay in zip(timeline.messages, exposed_by_message(timeline, since, until), strict=True):
        for layer in message.layers:
            found[layer] = found.get(layer, 0.0) + delay / len(message.layers)
    return found
