"""Ranks by measured time: a layer is decomposed only if that is faster on the target, and the network never gets
slower.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from multi_dnn_ros.compression.layers import Layer
from multi_dnn_ros.compression.ranks import Choice, RankPolicy, ReportProgress, Rounding, plan_of
from multi_dnn_ros.models.decomposed import SvdPlan, TuckerPlan, apply_plan, empty_chain
from multi_dnn_ros.planning.timing import Target, compare

LayerPlan = TuckerPlan | SvdPlan
#: Signature of timing.compare; a parameter, so that tests can replace it.
Compare = Callable[[Sequence[nn.Module], tuple[int, ...], Target, Sequence[int]], dict[int, list[float]]]

#: Alignments, besides the policy's own, to which candidate ranks are rounded up.
_ALIGNMENTS = (16, 32, 64)
#: Minimum relative gain of a decomposed layer.
_MARGIN = 0.03
#: Minimum relative gain of a decomposed network, so that it is not slower in the next measurement.
_WHOLE_MARGIN = 0.01


@dataclass
class Measured:
    """Selects the fastest plan among the ranks that `base` requires and larger, better aligned ones; otherwise the
    original.

    The candidates for a layer are the base's ranks, these rounded up to multiples of 16, 32 and 64, and these with one
    mode not decomposed. None is below the base's ranks, so no accuracy is lost beyond what the base accepts. A
    candidate must be faster than the original layer by 3 %. Then the whole network is timed against the original,
    alone and with `instances` concurrent copies; while it is not faster in both cases, the half of its decomposed
    layers with the smallest gains is restored.

    network, input_shape: the network that runs on the target, whose layer names are used, and its input. choose()
    stores the times of the network with the selected plans in `accepted`: by number of concurrent copies, milliseconds
    of the original and of the decomposed network, timed alternately. It is empty if all layers are kept.
    """

    base: RankPolicy
    target: Target
    network: nn.Module
    input_shape: tuple[int, ...]
    rounding: Rounding = field(default_factory=Rounding)
    instances: int = 2
    compare: Compare = compare
    accepted: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: Times of layers that are alike, so that each kind is timed once.
    _known: dict[tuple[Any, ...], list[float]] = field(default_factory=dict, repr=False)

    def choose(self, layers: Sequence[Layer], progress: ReportProgress = lambda: None) -> dict[str, Choice]:
        """See RankPolicy; takes at most log2(layers) + 2 measurements of the whole network."""
        wanted = self.base.choose(layers)
        choices: dict[str, Choice] = {}
        gains: dict[str, float] = {}
        for layer in layers:
            if layer.kept:
                continue
            choices[layer.name] = wanted[layer.name]
            if wanted[layer.name].plan is not None:
                choices[layer.name], gains[layer.name] = self._fastest(layer, wanted[layer.name].plan)
            progress()
        return self._never_slower(choices, gains)

    def _fastest(self, layer: Layer, base: LayerPlan | None) -> tuple[Choice, float]:
        assert base is not None
        plans = candidate_plans(layer, base, self.rounding)
        times = self._times(layer, plans)
        original = times[0]
        details = f"original {original:.4f} ms; " + ", ".join(
            f"{plan} {ms:.4f}" for plan, ms in zip(plans, times[1:], strict=True)
        )
        best = min(range(len(plans)), key=lambda index: times[index + 1])
        gain = original - times[best + 1]
        if gain < _MARGIN * original:
            return Choice(None, f"not faster: {times[best + 1]:.4f} ms against {original:.4f} ms", details), 0.0
        return Choice(plans[best], "", details), gain

    def _times(self, layer: Layer, plans: Sequence[LayerPlan]) -> list[float]:
        """Milliseconds of the original layer and of each plan, over all calls of an inference."""
        totals = [0.0] * (len(plans) + 1)
        for shape, _ in layer.calls:
            key = (repr(layer.module), shape[1:], tuple(plans))
            if key not in self._known:
                modules = [layer.module, *(empty_chain(layer.module, plan) for plan in plans)]
                self._known[key] = self.compare(modules, shape, self.target, (1,))[1]
            totals = [total + ms for total, ms in zip(totals, self._known[key], strict=True)]
        return totals

    def _never_slower(self, choices: dict[str, Choice], gains: dict[str, float]) -> dict[str, Choice]:
        while True:
            plans = {name: choice.plan for name, choice in choices.items() if choice.plan is not None}
            if not plans:
                return choices
            decomposed = copy.deepcopy(self.network)
            apply_plan(decomposed, plans, "measured ranks")
            times = self.compare((self.network, decomposed), self.input_shape, self.target, (1, self.instances))
            ratios = {instances: after / before for instances, (before, after) in times.items()}
            worst = max(ratios, key=ratios.__getitem__)
            if ratios[worst] <= 1.0 - _WHOLE_MARGIN:
                self.accepted = {instances: (before, after) for instances, (before, after) in times.items()}
                return choices
            before, after = times[worst]
            reason = (
                f"restored: with {len(plans)} decomposed layers, {worst} concurrent copies of the network took "
                f"{after:.4f} ms against {before:.4f} ms"
            )
            smallest_gain_first = sorted(plans, key=lambda name: gains.get(name, 0.0))
            for name in smallest_gain_first[: math.ceil(len(plans) / 2)]:
                choices[name] = Choice(None, reason, choices[name].details)


def candidate_plans(layer: Layer, base: LayerPlan, rounding: Rounding) -> list[LayerPlan]:
    """Distinct plans with at least the ranks of `base`, which comes first."""
    inputs, outputs = layer.channels
    if isinstance(base, SvdPlan):
        max_rank = min(inputs, outputs)
        ranks = [(rank, rank) for rank in (base.rank, *(_round_up(base.rank, to, max_rank) for to in _ALIGNMENTS))]
    else:
        r, s = base.in_rank or inputs, base.out_rank or outputs
        ranks = [(r, s)]
        for alignment in _ALIGNMENTS:
            if alignment > rounding.alignment:
                ranks.append((_round_up(r, alignment, inputs), _round_up(s, alignment, outputs)))
        ranks += [(r, outputs), (inputs, s)]
    plans: list[LayerPlan] = [base]
    for pair in ranks:
        plan = plan_of(layer, *pair)
        if plan is not None and plan not in plans:
            plans.append(plan)
    return plans


def _round_up(rank: int, alignment: int, channels: int) -> int:
    return min(channels, -(-rank // alignment) * alignment)
