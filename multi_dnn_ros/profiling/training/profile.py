"""The result of a distributed training profile: layers, methods, interconnect and prediction, from measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
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
    """ms: measured in the step with reduction by layers. bound_ms: of the roofline, or of the link's fit."""

    ms: float
    flops: int
    bytes: int
    intensity: float
    bound_ms: float


@dataclass(frozen=True)
class LayerProfile:
    """all_reduce.ms: alone, nothing else running; its bytes are those sent by each process. launch_ms: in the backward
    pass. in_flight_ms: from launch to end, in the step. exposed_ms, ddp_exposed_ms: part of the step in which nothing
    but this layer's reduction (its share of its bucket) was waited for.
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
        """Its part of the step."""
        return self.forward.ms + self.backward.ms + self.optimizer.ms + self.launch_ms + self.exposed_ms


@dataclass(frozen=True)
class MethodProfile:
    """step_ms: measured, mean of the processes; on a GPU without gaps for launching. wall_ms: the same by the host's
    clock, with them. sum_ms: of the layers. predicted_ms: from the layers' times without communication and the fit.
    """

    step_ms: float
    wall_ms: float
    sum_ms: float
    exposed_ms: float
    messages: int
    predicted_ms: float

    @property
    def closure(self) -> float:
        """Sum of the layers over the measured step."""
        return self.sum_ms / self.step_ms


@dataclass(frozen=True)
class TrainingProfile:
    """link: None for one process without a given link. given: links that were given, not measured."""

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
        """Relative error of the fit for each message size."""
        link = self.link
        return [link.seconds(of.bytes, of.processes) / of.seconds - 1 for of in self.messages] if link else []

    def for_json(self) -> dict[str, Any]:
        """Without the timelines."""
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
    progress: Callable[[], None] = lambda: None,
) -> TrainingProfile:
    """measured: of all processes. inside, between: links to predict with, in place of the measured one. per_step: of
    the measured one, see Link.

    The measured link is that between hosts if the processes ran on several, where `inside` must be given to predict
    more processes per host; without `between`, predictions are for one host.
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
    scaling = predict_scaling(model_of_step, topology, counts, progress) if topology is not None else []
    return TrainingProfile(
        model, first.target, first.shape, batch, first.processes, first.per_host, first.limits, layers, methods,
        first.messages, link, between, given, first.overlap, tuple(scaling), first.unused,
        {method: times.traced for method, times in first.times.items()},
    )  # fmt: skip


def _step_model(measured: Sequence[Measured], bucket_mib: float) -> StepModel:
    """From the steps without communication. bucket_mib: size of DDP's buckets, if it did not run."""
    first = measured[0]

    def seconds(layer: int, phase: Phase) -> float:
        return _mean(of.times["alone"].seconds.get((layer, phase), 0.0) for of in measured)

    # Layers without parameters take their places by name: a module's number grows in the order of its definition.
    order = list(first.order)
    for number in range(len(first.names)):
        if number not in first.order:
            after = [place for place, other in enumerate(order) if other > number]
            order.insert(max(after) + 1 if after else 0, number)
    place_of = {number: place for place, number in enumerate(order)}
    layers = tuple(
        LayerTimes(
            seconds(number, "forward"), seconds(number, "backward"), seconds(number, "optimizer"),
            first.gradient_bytes[number],
        )
        for number in order
    )  # fmt: skip
    # A layer whose parameters are in two buckets is complete with the later one.
    bucket_of = {layer: number for number, (bucket, _) in enumerate(first.buckets) for layer in bucket}
    buckets = tuple(
        tuple(place_of[layer] for layer, own in bucket_of.items() if own == number)
        for number in range(len(first.buckets))
    )
    buckets = tuple(bucket for bucket in buckets if bucket)
    buckets = buckets or _as_ddp_would([layer.gradient_bytes for layer in layers], bucket_mib)
    launches = [
        value for (_, phase), value in (first.times["layers"].seconds.items() if "layers" in first.times else ())
        if phase == "reduce"
    ]  # fmt: skip
    return StepModel(layers, buckets, first.overlap, statistics.median(launches) if launches else 0.0)


def _as_ddp_would(sizes: Sequence[int], bucket_mib: float) -> tuple[tuple[int, ...], ...]:
    """Places of layers by bucket: a bucket is closed as soon as it has the size, the first with 1 MiB."""
    buckets: list[list[int]] = [[]]
    held = 0
    for place, size in enumerate(sizes):
        if size:
            buckets[-1].append(place)
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

    count, several = first.gradient_bytes[number], first.processes
    sent = 2 * count * (several - 1) // several
    adds = first.parameters[number] * (several - 1) // several
    alone_s = [_nearest(of.layer_messages, count) for of in measured if count and of.layer_messages]
    bound_ms = 1e3 * link.seconds(count, several) if link is not None else 0.0
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
