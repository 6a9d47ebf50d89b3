"""A network's profile: work, time and the device's lower bound of every layer and job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from torch import fx

from multi_dnn_ros.graph.cut import NodeCost
from multi_dnn_ros.graph.operations import Counts, Operation, counter, total
from multi_dnn_ros.planning.checked_file import ProfileError as ProfileError
from multi_dnn_ros.planning.device import DeviceLimits
from multi_dnn_ros.planning.file_model import FileModel
from multi_dnn_ros.planning.measure import Times, Traced
from multi_dnn_ros.planning.timing import Target

Milliseconds = Annotated[float, Field(ge=0.0)]
Shapes = tuple[tuple[int, ...], ...]


class Distribution(FileModel):
    """Distribution of milliseconds over rounds."""

    min: Milliseconds
    p25: Milliseconds
    p50: Milliseconds
    p75: Milliseconds
    max: Milliseconds
    mean: Milliseconds
    samples: int = Field(ge=1)

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        low, p25, p50, p75, high = (float(value) for value in np.percentile(values, (0, 25, 50, 75, 100)))
        return cls(min=low, p25=p25, p50=p50, p75=p75, max=high, mean=float(np.mean(values)), samples=len(values))

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median."""
        return (self.p75 - self.p25) / self.p50 if self.p50 else 0.0


class Work(FileModel):
    """Arithmetic and memory traffic; see graph.operations.Counts."""

    macs: int = Field(ge=0)
    flops: int = Field(ge=0)
    parameters: int = Field(ge=0)
    bytes_read: int = Field(ge=0)
    bytes_written: int = Field(ge=0)

    @classmethod
    def of(cls, counts: Counts) -> Work:
        return cls(**counts.__dict__)

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic operations per byte read or written."""
        return self.flops / self.moved if self.moved else 0.0


class LayerShape(FileModel):
    """A layer as found in the graph: one traced operation and the views of its result.

    nodes: names of its operations in the traced graph; the first is the layer's name. module: qualified name of its
    module. kind: one of graph.operations.KINDS.
    """

    nodes: tuple[str, ...] = Field(min_length=1)
    module: str
    kind: str
    operation: str
    inputs: Shapes
    outputs: Shapes
    window: int = Field(ge=1)
    groups: int = Field(ge=1)
    work: Work

    @property
    def name(self) -> str:
        return self.nodes[0]


class LayerProfile(LayerShape):
    """A layer with its times. job: index of its job. bound_ms: roofline bound."""

    job: int = Field(ge=0)
    ms: Distribution
    bound_ms: Milliseconds

    @property
    def distance(self) -> float | None:
        """Ratio of the time to the bound; below 1 if data came from the caches. None without work."""
        return self.ms.p50 / self.bound_ms if self.bound_ms else None


class JobProfile(FileModel):
    """A job as served. layers_ms: sum of its layers' medians."""

    layers: int = Field(ge=0)
    work: Work
    ms: Distribution
    layers_ms: Milliseconds
    bound_ms: Milliseconds


class Profile(FileModel):
    """Profile of one network on one device.

    sum_ms: sum of the layers' medians. whole: the network, measured without marks inside its jobs. target: device,
    threads, precision, backend, versions. disturbed: rounds in which other processes preempted this one.
    """

    format: Literal["multi_dnn_ros profile 1"] = "multi_dnn_ros profile 1"
    model: str
    target: str
    backend: str
    limits: DeviceLimits
    batch: int = Field(ge=1)
    shape: tuple[int, ...]
    layers: tuple[LayerProfile, ...]
    jobs: tuple[JobProfile, ...]
    whole: Distribution
    sum_ms: Milliseconds
    disturbed: int = Field(ge=0)
    warnings: tuple[str, ...] = ()
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def closure(self) -> float:
        """Sum of the layers' times divided by the whole network's: 1 if the layers account for all of it."""
        return self.sum_ms / self.whole.p50 if self.whole.p50 else 0.0

    @property
    def imbalance(self) -> float:
        """The longest job divided by the mean job."""
        times = [job.ms.p50 for job in self.jobs]
        return max(times) * len(times) / sum(times) if sum(times) else 1.0


def node_costs(layers: Iterable[tuple[LayerShape, float]], source: str) -> NodeCost:
    """Seconds by operation from milliseconds by layer: a layer's first operation has its time, the others cost 0."""
    known: dict[str, float] = {}
    for layer, ms in layers:
        known.update(dict.fromkeys(layer.nodes, 0.0))
        known[layer.name] = ms / 1e3

    def seconds(node: fx.Node) -> float:
        if node.name not in known:
            raise ProfileError(
                f"{source} has no operation '{node.name}'; it was made for another network or input size"
            )
        return known[node.name]

    return seconds


def describe(traced: Traced, layers: Iterable[Sequence[str]]) -> list[LayerShape]:
    """Describe layers, given by the names of their operations. Operations fused into another layer count no work."""
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    counted = counter(traced.graph_module)

    def operation_of(node: fx.Node) -> Operation:
        operation = counted(node)
        return replace(operation, kind="view", counts=Counts()) if node.name in traced.fused else operation

    return [_shape([nodes[name] for name in names], [operation_of(nodes[name]) for name in names]) for names in layers]


def profile(
    model: str,
    traced: Traced,
    times: Times,
    target: Target,
    limits: DeviceLimits,
    *,
    warnings: Sequence[str] = (),
    **origin: Any,
) -> Profile:
    """Combine counted work and measured times. origin: provenance, copied unchanged."""
    shapes = describe(traced, [layer for stage in times.stages for layer in stage.layers])
    job_of_layer = [index for index, stage in enumerate(times.stages) for _ in stage.layers]
    layers = tuple(
        LayerProfile(
            **dict(shape), job=job, ms=Distribution.of(ms), bound_ms=limits.bound_ms(shape.work.flops, shape.work.moved)
        )
        for shape, job, ms in zip(shapes, job_of_layer, times.layers, strict=True)
    )
    jobs = []
    for index, ms in enumerate(times.jobs):
        of_job = [layer for layer in layers if layer.job == index]
        jobs.append(
            JobProfile(
                layers=len(of_job),
                work=Work.of(total(Counts(**dict(layer.work)) for layer in of_job)),
                ms=Distribution.of(ms),
                layers_ms=sum(layer.ms.p50 for layer in of_job),
                bound_ms=sum(layer.bound_ms for layer in of_job),
            )
        )
    all_warnings = list(warnings)
    if times.disturbed:
        rounds = len(times.whole) + len(times.layers[0] if times.layers else ())
        all_warnings.append(
            f"{times.disturbed} of {rounds} rounds were preempted by other processes; times may be too long"
        )
    return Profile(
        model=model,
        target=target.name(),
        backend=target.backend,
        limits=limits,
        batch=target.batch,
        shape=tuple(traced.inputs[0].shape),
        layers=layers,
        jobs=tuple(jobs),
        whole=Distribution.of(times.whole),
        sum_ms=sum(layer.ms.p50 for layer in layers),
        disturbed=times.disturbed,
        warnings=tuple(all_warnings),
        provenance=origin,
    )


def _shape(nodes: Sequence[fx.Node], operations: Sequence[Operation]) -> LayerShape:
    main = next((index for index, operation in enumerate(operations) if operation.kind != "view"), 0)
    operation = operations[main]
    return LayerShape(
        nodes=tuple(node.name for node in nodes),
        module=_module(nodes[main]),
        kind=operation.kind,
        operation=operation.name,
        inputs=operation.inputs,
        outputs=operation.outputs,
        window=operation.window,
        groups=operation.groups,
        work=Work.of(total(operation.counts for operation in operations)),
    )


def _module(node: fx.Node) -> str:
    """Qualified name of the module in which the operation was traced; "" if none."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""
