"""A distributed training profile, made from measurements: layers, methods, interconnect and predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multi_dnn_ros.planning.device import DeviceLimits
from multi_dnn_ros.profiling.training.interconnect import Link, Overlap, Sample, Topology, fit_link
from multi_dnn_ros.profiling.training.layers import Phase
from multi_dnn_ros.profiling.training.measure import Measured
from multi_dnn_ros.profiling.training.prediction import LayerTimes, Scaling, StepModel, predict_scaling
from multi_dnn_ros.profiling.training.step import Method
from multi_dnn_ros.profiling.training.trace import Timeline
from multi_dnn_ros.profiling.training.work import Work


@dataclass(frozen=True)
class PhaseProfile:
    """One phase of a layer. ms: measured in the listed method. bound_ms: from the roofline, or from the fitted link."""

    ms: float
    flops: int
    bytes: int
    intensity: float
    bound_ms: float


@dataclass(frozen=True)
class LayerProfile:
    """One layer. all_reduce: ms was measured with nothing else running; bytes are those that each process sends.

    launch_ms: launch of the reduction in the backward pass. in_flight_ms: from the launch to the end of the reduction
    in the step. exposed_ms, ddp_exposed_ms: time for which the step waited only for the reduction of this layer; with
    DDP, the layer's share of the wait for its bucket.
    """

    name: str
    kind: str
    parameters: int
    gradient_bytes: int
    forward: PhaseProfile
    backward: PhaseProfile
    optimizer: PhaseProfile
    all_reduce: PhaseProfile
    launch_ms: float = 0.0
    in_flight_ms: float = 0.0
    exposed_ms: float = 0.0
    ddp_exposed_ms: float = 0.0

    @property
    def ms(self) -> float:
        """The layer's part of the step."""
        return self.forward.ms + self.backward.ms + self.optimizer.ms + self.launch_ms + self.exposed_ms


@dataclass(frozen=True)
class MethodProfile:
    """One method. step_ms: measured, mean over the processes; on a GPU without gaps for launching. wall_ms: the same
    with these gaps, by the host's clock. sum_ms: sum over the layers. predicted_ms: predicted from the layers' times
    without communication and the fitted link.
    """

    step_ms: float
    wall_ms: float
    sum_ms: float
    exposed_ms: float
    messages: int
    predicted_ms: float

    @property
    def closure(self) -> float:
        """Sum of the layers divided by the measured step."""
        return self.sum_ms / self.step_ms


@dataclass(frozen=True)
class TrainingProfile:
    """The profile. link: None for one process without a given link. given: links that were given, not measured."""

    model: str
    target: str
    shape: tuple[int, ...]
    batch: int
    processes: int
    per_host: int
    limits: DeviceLimits
    layers: tuple[LayerProfile, ...]
    methods: dict[Method, MethodProfile]
    messages: tuple[Sample, ...]
    link: Link | None
    between: Link | None
    given: tuple[str, ...]
    overlap: Overlap
    scaling: tuple[Scaling, ...]
    unused: tuple[str, ...]
    timelines: dict[Method, Timeline]

    @property
    def main(self) -> Method:
        """The method whose layers are listed."""
        return "layers" if "layers" in self.methods else "alone"

    def fit_errors(self) -> list[float]:
        """Relative error of the link for each measured message size."""
        link = self.link
        if link is None:
            return []
        return [link.seconds(message.bytes, message.processes) / message.seconds - 1 for message in self.messages]

    def for_json(self) -> dict[str, Any]:
        """The profile without its timelines, for JSON."""
        content = {key: value for key, value in vars(self).items() if key not in ("timelines", "limits", "layers")}
        for key in ("link", "between", "overlap"):
            content[key] = asdict(content[key]) if content[key] is not None else None
        content["methods"] = {key: {**vars(of), "sum_over_step": of.closure} for key, of in self.methods.items()}
        content["messages"] = [asdict(of) for of in self.messages]
        content["fit_relative_errors"] = self.fit_errors()
        content["scaling_predicted"] = [asdict(of) for of in content.pop("scaling")]
        return {**content, "limits": self.limits.model_dump(), "layers": [asdict(of) for of in self.layers]}


def make_profile(
    model: str,
    batch: int,
    measured: Sequence[Measured],
    *,
    inside: Link | None = None,
    between: Link | None = None,
    per_step: bool = True,
    per_host: int | None = None,
    predict_to: int = 64,
    bucket_mib: float = 25.0,
) -> TrainingProfile:
    """Make the profile. measured: measurements of all processes. inside, between: links to predict with; without
    `inside`, the measured link is used. per_step: kind of latency of the measured link, see Link.

    If the processes ran on several hosts, the measured link is the one between them, and `inside` must be given to
    predict more processes per host. Without `between`, predictions are for one host.
    """
    first = measured[0]
    fitted = fit_link(first.messages, per_step=per_step) if first.messages else None
    given = tuple(name for name, link in (("link", inside), ("host link", between)) if link is not None)
    main: Method = "layers" if first.processes > 1 else "alone"
    link = inside or fitted
    topology = Topology(link, between, per_host or 1 << 30) if link is not None else None
    model_of_step = _step_model(measured, bucket_mib)
    layers = tuple(
        _layer(measured, number, main, fitted)
        for number in range(len(first.names))
        if any(key[0] == number for key in (*first.work, *first.times[main].seconds))
    )
    here = Topology(fitted) if fitted is not None else None
    predicted: dict[Method, float] = {"alone": model_of_step.alone_s()}
    if here is not None:
        predicted["layers"] = model_of_step.layers_s(here, first.processes)
        predicted["ddp"] = model_of_step.ddp_s(here, first.processes)
    methods = {
        method: MethodProfile(
            1e3 * _mean(of.times[method].step_s for of in measured),
            1e3 * _mean(of.times[method].wall_s for of in measured),
            1e3 * _mean(sum(of.times[method].seconds.values()) for of in measured),
            1e3 * _mean(sum(of.times[method].exposed_s.values()) for of in measured),
            len(first.times[method].traced.messages),
            1e3 * predicted[method],
        )
        for method in first.times
    }
    counts = [1 << power for power in range(predict_to.bit_length()) if 1 << power <= predict_to]
    scaling = predict_scaling(model_of_step, topology, counts) if topology is not None else []
    return TrainingProfile(
        model, first.target, first.shape, batch, first.processes, first.per_host, first.limits, layers, methods,
        first.messages, link, between, given, first.overlap, tuple(scaling), first.unused,
        {method: times.traced for method, times in first.times.items()},
    )  # fmt: skip


def _step_model(measured: Sequence[Measured], bucket_mib: float) -> StepModel:
    """Model of the step, from steps without communication. bucket_mib: size of the buckets if DDP did not run."""
    first = measured[0]

    def seconds(layer: int, phase: Phase) -> float:
        return _mean(of.times["alone"].seconds.get((layer, phase), 0.0) for of in measured)

    # Insert layers without parameters by number: modules are numbered in the order of their definition.
    order = list(first.order)
    for number in range(len(first.names)):
        if number not in first.order:
            after = [index for index, other in enumerate(order) if other > number]
            order.insert(max(after) + 1 if after else 0, number)
    index_of = {number: index for index, number in enumerate(order)}
    layers = tuple(
        LayerTimes(
            seconds(number, "forward"), seconds(number, "backward"), seconds(number, "optimizer"),
            first.gradient_bytes[number],
        )
        for number in order
    )  # fmt: skip
    # A layer whose parameters are in two buckets is complete after the later one.
    bucket_of = {layer: number for number, (bucket, _) in enumerate(first.buckets) for layer in bucket}
    buckets = tuple(
        tuple(index_of[layer] for layer, last in bucket_of.items() if last == number)
        for number in range(len(first.buckets))
    )
    buckets = tuple(bucket for bucket in buckets if bucket)
    buckets = buckets or _buckets_of_ddp([layer.gradient_bytes for layer in layers], bucket_mib)
    launches = [
        value for (_, phase), value in (first.times["layers"].seconds.items() if "layers" in first.times else ())
        if phase == "reduce"
    ]  # fmt: skip
    return StepModel(layers, buckets, first.overlap, statistics.median(launches) if launches else 0.0)


def _buckets_of_ddp(sizes: Sequence[int], bucket_mib: float) -> tuple[tuple[int, ...], ...]:
    """Indices of the layers in each bucket. As in DDP, a bucket is full at `bucket_mib`, the first one at 1 MiB."""
    buckets: list[list[int]] = [[]]
    held = 0
    for index, size in enumerate(sizes):
        if size:
            buckets[-1].append(index)
            held += size
        if held >= (bucket_mib if len(buckets) > 1 else min(1.0, bucket_mib)) * 2**20:
            buckets.append([])
            held = 0
    return tuple(tuple(bucket) for bucket in buckets if bucket)


def _layer(measured: Sequence[Measured], number: int, main: Method, link: Link | None) -> LayerProfile:
    first = measured[0]

    def ms(phase: Phase) -> float:
        return 1e3 * _mean(of.times[main].seconds.get((number, phase), 0.0) for of in measured)

    def phase(name: Phase) -> PhaseProfile:
        work = first.work.get((number, name), Work())
        bound = first.limits.bound_ms(work.flops, work.bytes)
        return PhaseProfile(ms(name), work.flops, work.bytes, work.intensity, bound)

    count, processes = first.gradient_bytes[number], first.processes
    sent = 2 * count * (processes - 1) // processes
    adds = first.parameters[number] * (processes - 1) // processes
    alone_s = [_nearest(of.layer_messages, count) for of in measured if count and of.layer_messages]
    bound_ms = 1e3 * link.seconds(count, processes) if link is not None else 0.0
    flights = [message for message in first.times[main].traced.messages if number in message.layers]
    return LayerProfile(
        first.names[number], first.kinds[number], first.parameters[number], count,
        phase("forward"), phase("backward"), phase("optimizer"),
        PhaseProfile(1e3 * _mean(alone_s) if alone_s else 0.0, adds, sent, adds / sent if sent else 0.0, bound_ms),
        ms("reduce"), 1e3 * sum(of.end_s - of.start_s for of in flights), ms("wait"),
        1e3 * _mean(of.times["ddp"].exposed_s.get(number, 0.0) for of in measured) if "ddp" in first.times else 0.0,
    )  # fmt: skip


def _nearest(samples: Sequence[Sample], count: int) -> float:
    return min(samples, key=lambda of: abs(of.bytes - count)).seconds


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
