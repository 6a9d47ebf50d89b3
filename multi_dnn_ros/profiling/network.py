"""Profiles a network given by its model name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn

from multi_dnn_ros.graph.cut import NodeCost
from multi_dnn_ros.planning.device import DeviceLimits
from multi_dnn_ros.planning.measure import ReportProgress, Times, Traced, measure, trace_for
from multi_dnn_ros.planning.profile import Profile, describe, node_costs, profile
from multi_dnn_ros.planning.timing import Target

#: What the cut into jobs balances: estimated costs, the number of layers, or measured times.
CutBy = Literal["estimate", "count", "measured"]


@dataclass(frozen=True)
class Network:
    """A network to profile. shape: of its only input, with batch 1."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]


def load(model: str, *, weights: str = "", num_classes: int = 0, size: tuple[int, int] | None = None) -> Network:
    """The network that the node would run for `model`, or a torchvision classifier.

    weights: "" means random for sources that take weights (times do not depend on them), otherwise the model's own.
    size: (width, height), for models that do not define it. Raises ModelError, which names the argument.
    """
    from multi_dnn_ros.graph.balance import balance, random_image
    from multi_dnn_ros.models.registry import source_of
    from multi_dnn_ros.models.sources import load_network

    origin = source_of(model)
    weights = weights or ("random" if origin is not None and origin.takes_weights else "default")
    source = load_network(model, weights=weights, num_classes=num_classes, size=size)
    width, height = source.input_size(model, size, "argument size")
    if weights == "random":
        balance(source.network, random_image(width, height))
    return Network(model, source.network, (1, 3, height, width))


def profile_network(
    network: Network,
    target: Target,
    limits: DeviceLimits,
    *,
    jobs: int,
    cut_by: CutBy = "estimate",
    costs: Callable[[Traced], NodeCost] | None = None,
    seed: int = 0,
    warnings: tuple[str, ...] = (),
    progress: ReportProgress = lambda done, total: None,
    hold: Callable[[], AbstractContextManager[None]] = nullcontext,
    timed: Callable[..., Times] = measure,
    **origin: Any,
) -> Profile:
    """Trace, measure and describe a network.

    cut_by: "measured" measures twice: the layers, then the network cut accordingly. costs: makes the cost function of
    the cut, instead of `cut_by`. seed, hold, progress: see measure. timed: measure, or a replacement. warnings, origin:
    see profile.
    """
    traced = trace_for(network.module, network.shape, target, seed)
    chosen: NodeCost | None = None
    if costs is not None:
        chosen = costs(traced)
    elif cut_by == "count":
        chosen = _each_layer_alike
    elif cut_by == "measured":
        first = timed(traced, target, jobs=1, seed=seed, hold=hold, progress=progress)
        chosen = measured_costs(traced, first, network.name)
    times = timed(traced, target, jobs=jobs, costs=chosen, seed=seed, hold=hold, progress=progress)
    return profile(network.name, traced, times, target, limits, warnings=warnings, **origin)


def measured_costs(traced: Traced, times: Times, name: str) -> NodeCost:
    """Cost function from measured layers: the median over the rounds, in seconds."""
    shapes = describe(traced, [layer for stage in times.stages for layer in stage.layers])
    medians = (float(torch.tensor(ms, dtype=torch.float64).median()) for ms in times.layers)
    return node_costs(zip(shapes, medians, strict=True), f"the measurement of {name}")


def _each_layer_alike(node: fx.Node) -> float:
    return 1.0
