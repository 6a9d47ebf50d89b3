"""Decomposes a network: choose ranks, compute the weights, replace the layers, and record each layer's outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.compression.layers import Layer, list_layers
from multi_dnn_ros.compression.ranks import RankPolicy
from multi_dnn_ros.compression.tucker import ITERATIONS, decomposed_layer
from multi_dnn_ros.models.decomposed import SvdPlan, TuckerPlan, replace_layer
from multi_dnn_ros.models.errors import ModelError

#: Called with (number of finished layers, number of layers, current step).
ReportProgress = Callable[[int, int, str], None]


class NothingToDecompose(ModelError):
    """No layer of the network can be decomposed, or none is worth it; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one layer.

    plan: None if the layer was kept, for `reason`. error: ||W - W'|| / ||W||. macs, parameters: before and after.
    details: measurements of the policy, as text.
    """

    name: str
    layer: str
    plan: TuckerPlan | SvdPlan | None
    reason: str
    error: float
    macs: tuple[int, int]
    parameters: tuple[int, int]
    details: str = ""


def decompose(
    network: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    policy: RankPolicy,
    *,
    layers: Sequence[Layer] | None = None,
    linear: bool = False,
    iterations: int = ITERATIONS,
    may_keep_all: bool = False,
    progress: ReportProgress = lambda done, total, what: None,
) -> list[Outcome]:
    """Replace the layers of `network` (eval mode, CPU) that `policy` selects, in place; returns the outcome of each
    layer.

    inputs: example inputs. layers: the result of list_layers(), if known. Raises NothingToDecompose if no layer can be
    replaced, or if none is worth it and not `may_keep_all`; the network is then unchanged. Raises ModelError if it
    cannot run or its weights are not finite; ValueError from the policy.
    """
    layers = list(list_layers(network, inputs, linear=linear) if layers is None else layers)
    open_layers = [layer for layer in layers if not layer.kept]
    if not open_layers:
        reasons = sorted({layer.kept for layer in layers}) or ["it has no convolution"]
        raise NothingToDecompose(f"{type(network).__name__} has nothing to decompose: {'; '.join(reasons)}")
    for layer in open_layers:
        module: Any = layer.module
        if not bool(torch.isfinite(module.weight).all()):
            raise ModelError(f"layer {layer.name}: its weights are not finite")
    done = 0

    def count_choice() -> None:
        nonlocal done
        done += 1
        progress(done, 2 * len(open_layers), "ranks")

    choices = policy.choose(layers, count_choice)
    plans = {name: choice.plan for name, choice in choices.items() if choice.plan is not None}
    if not plans and not may_keep_all:
        reasons = sorted({choice.reason for choice in choices.values()})
        raise NothingToDecompose(f"no layer of {type(network).__name__} is worth decomposing: {'; '.join(reasons)}")
    errors: dict[str, float] = {}
    chains: dict[str, nn.Module] = {}
    for number, layer in enumerate(open_layers, start=1):
        progress(len(open_layers) + number - 1, 2 * len(open_layers), layer.name)
        if layer.name in plans:
            try:
                chain, error = decomposed_layer(layer.module, plans[layer.name], iterations=iterations)
            except ValueError as problem:
                raise ModelError(f"layer {layer.name}: {problem}") from None
            chains[layer.name], errors[layer.name] = chain, error
    for layer in open_layers:
        if layer.name in chains:
            replace_layer(network, layer.module, chains[layer.name])
    progress(2 * len(open_layers), 2 * len(open_layers), "done")
    return [_outcome(layer, choices, errors) for layer in layers]


def plan_of(outcomes: Sequence[Outcome]) -> dict[str, TuckerPlan | SvdPlan]:
    """The plans of the decomposed layers."""
    return {outcome.name: outcome.plan for outcome in outcomes if outcome.plan is not None}


def output_difference(first: nn.Module, second: nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    """Largest difference between two networks' outputs on `inputs`, relative to the largest absolute value of the
    output in which it occurs.
    """
    with torch.inference_mode():
        left, right = (
            [leaf for leaf in pytree.tree_leaves(network(*inputs)) if isinstance(leaf, torch.Tensor)]
            for network in (first, second)
        )
    largest = 0.0
    for a, b in zip(left, right, strict=True):
        difference = float((a - b).abs().max()) / max(1e-30, float(a.abs().max())) if a.numel() else 0.0
        largest = max(largest, difference) if math.isfinite(difference) else math.inf
    return largest


def _outcome(layer: Layer, choices: dict[str, Any], errors: dict[str, float]) -> Outcome:
    choice = choices.get(layer.name)
    plan = choice.plan if choice is not None else None
    return Outcome(
        name=layer.name,
        layer=layer.describe(),
        plan=plan,
        reason=layer.kept or (choice.reason if choice is not None else ""),
        error=errors.get(layer.name, 0.0),
        macs=(layer.macs(), layer.macs(plan)),
        parameters=(layer.parameters(), layer.parameters(plan)),
        details=choice.details if choice is not None else "",
    )
