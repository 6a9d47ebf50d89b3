"""Decomposes a network: choose ranks, compute the weights, replace the layers, and record each layer's outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.compression.calibration import Images, fit_cores, measure_moments
from multi_dnn_ros.compression.layers import Layer, list_layers
from multi_dnn_ros.compression.ranks import Choice, RankPolicy
from multi_dnn_ros.compression.tucker import decomposed_layer
from multi_dnn_ros.models.decomposed import SvdLinear, SvdPlan, TuckerConv2d, TuckerPlan, replace_layer
from multi_dnn_ros.models.errors import ModelError

#: Called with (number of finished layers, number of layers, current step).
ReportProgress = Callable[[int, int, str], None]


class NothingToDecompose(ModelError):
    """No layer of the network can be decomposed, or none is worth it; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one layer.

    plan: None if the layer was kept, for `reason`. error: relative, of the output on the images, or ||W - W'|| / ||W||.
    macs, parameters: before and after. details: measurements of the policy, as text.
    """

    name: str
    layer: str
    plan: TuckerPlan | SvdPlan | None
    reason: str
    error: float
    macs: tuple[int, int]
    parameters: tuple[int, int]
    details: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "fate": "decomposed" if self.plan is not None else "kept",
            "plan": self.plan.model_dump(mode="json") if self.plan is not None else None,
            "macs": change(*self.macs),
            "parameters": change(*self.parameters),
        }


def change(before: float, after: float) -> dict[str, float]:
    """Two values, and the share by which the second one is smaller."""
    return {"before": before, "after": after, "cut": 1.0 - after / before if before else 0.0}


def decompose(
    network: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    policy: RankPolicy,
    *,
    linear: bool = False,
    images: Images = (),
    may_keep_all: bool = False,
    progress: ReportProgress = lambda done, total, what: None,
) -> list[Outcome]:
    """Replace the layers of `network` (eval mode) that `policy` selects, in place; returns the outcome of each layer.

    inputs: example inputs. linear: see list_layers(). images: inputs of one inference each; with
    them, the weights minimize the error of the layers' outputs on these images, otherwise that of the original weights.
    Raises NothingToDecompose if no layer can be replaced, or if none is worth it and not `may_keep_all`; the network is
    then unchanged. Raises ModelError if it cannot run or if weights or values are not finite; ValueError from the
    policy.
    """
    layers = list_layers(network, inputs, linear=linear)
    open_layers = {layer.name: layer for layer in layers if not layer.kept}
    if not open_layers:
        reasons = sorted({layer.kept for layer in layers}) or ["it has no convolution"]
        raise NothingToDecompose(f"{type(network).__name__} has nothing to decompose: {'; '.join(reasons)}")
    for name, layer in open_layers.items():
        module: Any = layer.module
        if not bool(torch.isfinite(module.weight).all()):
            raise ModelError(f"layer {name}: its weights are not finite")
    total, done = 2 * len(open_layers) + 2 * len(images), 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        progress(done, total, what)

    choices = policy.choose(layers, lambda: step("ranks"))
    plans = {name: choice.plan for name, choice in choices.items() if choice.plan is not None}
    if not plans and not may_keep_all:
        reasons = sorted({choice.reason for choice in choices.values()})
        raise NothingToDecompose(f"no layer of {type(network).__name__} is worth decomposing: {'; '.join(reasons)}")
    chosen = {name: open_layers[name].module for name in plans}
    moments = measure_moments(network, chosen, images, lambda: step("images")) if images else {}
    errors: dict[str, float] = {}
    chains: dict[str, TuckerConv2d | SvdLinear] = {}
    for name, plan in plans.items():
        step(name)
        try:
            chains[name], errors[name] = decomposed_layer(chosen[name], plan, moments.get(name))
        except ValueError as problem:
            raise ModelError(f"layer {name}: {problem}") from None
    if images:
        errors |= fit_cores(network, chosen, chains, images, lambda: step("cores"))
    for name, chain in chains.items():
        replace_layer(network, chosen[name], chain)
    progress(total, total, "done")
    kept = Choice(None, "")
    return [
        _outcome(layer, choices.get(layer.name, kept), chains.get(layer.name), errors.get(layer.name, 0.0))
        for layer in layers
    ]


def plan_of(outcomes: Sequence[Outcome]) -> dict[str, TuckerPlan | SvdPlan]:
    """The plans of the decomposed layers."""
    return {outcome.name: outcome.plan for outcome in outcomes if outcome.plan is not None}


def _outcome(layer: Layer, choice: Choice, chain: nn.Module | None, error: float) -> Outcome:
    weights, left = (sum(p.numel() for p in module.parameters()) for module in (layer.module, chain or layer.module))
    return Outcome(
        name=layer.name,
        layer=repr(layer.module),
        plan=choice.plan,
        reason=layer.kept or choice.reason,
        error=error,
        macs=(layer.macs(), layer.macs(choice.plan)),
        parameters=(weights, left),
        details=choice.details,
    )
