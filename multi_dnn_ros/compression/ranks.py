"""Policies that select the layers to decompose and their ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from multi_dnn_ros.compression.layers import Layer
from multi_dnn_ros.models.decomposed import SvdPlan, TuckerPlan

#: Called after each layer.
ReportProgress = Callable[[], None]


@dataclass(frozen=True)
class Choice:
    """What to do with a layer. plan: its ranks; None: the layer is kept. reason: why it is kept. details: measurements,
    as text.
    """

    plan: TuckerPlan | SvdPlan | None
    reason: str
    details: str = ""


class RankPolicy(Protocol):
    """Selects the ranks of all layers in one call, because some policies divide a budget among the layers."""

    def choose(self, layers: Sequence[Layer], progress: ReportProgress = lambda: None) -> dict[str, Choice]:
        """The choice for each layer that may be decomposed (whose `kept` is empty), by layer name.

        Raises ValueError if no ranks meet the policy's parameters.
        """
        ...


@dataclass(frozen=True)
class Rounding:
    """The allowed ranks. alignment: ranks are multiples of it (tensor cores need 8 or more). floor: minimum rank."""

    alignment: int = 8
    floor: int = 8

    def __post_init__(self) -> None:
        for name in ("alignment", "floor"):
            value = getattr(self, name)
            if not 1 <= value <= 4096:
                raise ValueError(f"{name} is {value}; allowed: 1 to 4096")

    def rank(self, wanted: float, channels: int) -> int:
        """`wanted`, rounded down to an allowed rank; at least :meth:`min_rank`, at most `channels`."""
        multiple = int(wanted / self.alignment + 1e-9) * self.alignment
        return min(channels, max(multiple, self.min_rank()))

    def min_rank(self) -> int:
        """The smallest allowed rank."""
        return -(-max(self.floor, 1) // self.alignment) * self.alignment

    def all(self, channels: int) -> list[int]:
        """All allowed ranks in ascending order; `channels` is the last."""
        return [*range(self.min_rank(), channels, self.alignment), channels]


def plan_of(layer: Layer, in_rank: int, out_rank: int) -> TuckerPlan | SvdPlan | None:
    """The plan with these ranks; None if both are full. A mode (inputs or outputs) at full rank is not decomposed.

    For a fully connected layer, `in_rank` is the rank.
    """
    inputs, outputs = layer.channels
    if isinstance(layer.module, nn.Linear):
        return SvdPlan(rank=in_rank) if in_rank < min(inputs, outputs) else None
    # The core tensor has at most `other rank * kernel` independent rows, so a higher rank adds only MACs.
    out_rank, in_rank = min(out_rank, in_rank * layer.kernel), min(in_rank, out_rank * layer.kernel)
    plan = TuckerPlan(in_rank=in_rank if in_rank < inputs else None, out_rank=out_rank if out_rank < outputs else None)
    return plan if plan.in_rank is not None or plan.out_rank is not None else None


def choice_of(layer: Layer, in_rank: int, out_rank: int) -> Choice:
    """The choice with the fewest MACs: both modes at these ranks, or one of them at full rank."""
    inputs, outputs = layer.channels
    pairs = [(in_rank, out_rank), (inputs, out_rank), (in_rank, outputs)]
    plans = [plan for pair in pairs if (plan := plan_of(layer, *pair)) is not None]
    if not plans:
        return Choice(None, "its ranks would be all of its channels")
    cheapest = min(plans, key=layer.macs)
    if layer.macs(cheapest) >= layer.macs():
        return Choice(None, f"no fewer MACs at ranks {in_rank} and {out_rank}")
    return Choice(cheapest, "")


@dataclass(frozen=True)
class Ratio:
    """The same fraction of the channels in every layer (as in the paper)."""

    ratio: float
    rounding: Rounding = Rounding()

    def __post_init__(self) -> None:
        _check_fraction("ratio", self.ratio)

    def choose(self, layers: Sequence[Layer], progress: ReportProgress = lambda: None) -> dict[str, Choice]:
        choices = {}
        for layer in (layer for layer in layers if not layer.kept):
            choices[layer.name] = self._choice(layer)
            progress()
        return choices

    def _choice(self, layer: Layer) -> Choice:
        inputs, outputs = layer.channels
        if isinstance(layer.module, nn.Linear):
            inputs = outputs = min(inputs, outputs)
        return choice_of(
            layer, self.rounding.rank(self.ratio * inputs, inputs), self.rounding.rank(self.ratio * outputs, outputs)
        )


@dataclass(frozen=True)
class Budget:
    """Reduce the network's MACs by a fraction at minimum error of the weights.

    Each pair of ranks of a layer costs a number of MACs and keeps a share of the energy (sum of squares) in each of the
    two unfoldings. Layers run one after another, so the kept shares are multiplied: the error is the sum of their
    negative logarithms. (If the lost shares were added instead, a few expensive layers would lose nearly all of their
    energy, and the network would stop working.) The points (MACs, error) of each layer have a lower convex hull. The
    steps along the hulls of all layers are taken in order of error per MAC saved until the budget is met; this is
    optimal except for the last step.
    """

    macs_cut: float
    total_macs: int
    rounding: Rounding = Rounding()

    def __post_init__(self) -> None:
        _check_fraction("macs_cut", self.macs_cut)

    def choose(self, layers: Sequence[Layer], progress: ReportProgress = lambda: None) -> dict[str, Choice]:
        wanted = self.macs_cut * self.total_macs
        choices: dict[str, Choice] = {}
        steps: list[tuple[float, int, str, TuckerPlan | SvdPlan]] = []
        for layer in (layer for layer in layers if not layer.kept):
            choices[layer.name] = Choice(None, "not needed for the budget: other layers add less error per MAC saved")
            before_macs, before_error = layer.macs(), 0.0
            for macs, error, plan in _hull(layer, self.rounding):
                saved = before_macs - macs
                steps.append(((error - before_error) / saved, saved, layer.name, plan))
                before_macs, before_error = macs, error
            progress()
        possible = sum(saved for _, saved, _, _ in steps)
        if possible < wanted:
            limit = math.floor(1e3 * possible / self.total_macs) / 1e3  # rounded up, it would be refused
            raise ValueError(
                f"macs_cut is {self.macs_cut:.1%}; allowed with alignment {self.rounding.alignment} and floor "
                f"{self.rounding.floor}: up to {limit:.1%} of the MACs"
            )
        steps.sort(key=lambda step: step[0])  # stable sort and convex hulls: the steps of a layer stay in order
        for _, saved, name, plan in steps:
            if wanted <= 0:
                break
            wanted -= saved
            choices[name] = Choice(plan, "")
        return choices


def tail_energy(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """For r = 0, 1, ..., all: the fraction of the energy outside the first r singular values, over all groups."""
    energy = np.sum([values**2 for values in groups], axis=0)
    total = float(energy.sum())
    if not total > 0.0:
        return np.zeros(len(energy) + 1)
    lost: NDArray[np.float64] = np.append(np.cumsum(energy[::-1])[::-1], 0.0) / total
    return lost


#: Minimum kept energy, used for smaller values before the logarithm is taken; they are rounding errors.
_MIN_KEPT = 1e-12
#: Maximum number of ranks to consider for each mode of a layer.
_MAX_RANKS = 24


def _hull(layer: Layer, rounding: Rounding) -> list[tuple[int, float, TuckerPlan | SvdPlan]]:
    """The lower convex hull: points (MACs, error, plan) by descending MACs, without the original layer."""
    inputs, outputs = layer.channels
    # Error of each rank; 0 at full rank.
    cost_in, cost_out = (-np.log(np.maximum(1.0 - tail_energy(groups), _MIN_KEPT)) for groups in layer.unfoldings)
    points: list[tuple[int, float, TuckerPlan | SvdPlan]] = []
    if isinstance(layer.module, nn.Linear):
        pairs = [(rank, rank) for rank in rounding.all(min(inputs, outputs))]
        cost_out = np.zeros_like(cost_in)
    else:
        pairs = [(r, s) for r in _thinned(rounding.all(inputs)) for s in _thinned(rounding.all(outputs))]
    original = layer.macs()
    for in_rank, out_rank in pairs:
        plan = plan_of(layer, in_rank, out_rank)
        if plan is not None and (macs := layer.macs(plan)) < original:
            error = cost_in[min(in_rank, len(cost_in) - 1)] + cost_out[min(out_rank, len(cost_out) - 1)]
            points.append((macs, float(error), plan))
    hull: list[tuple[int, float, TuckerPlan | SvdPlan]] = []
    macs, error = original, 0.0
    while True:
        below = [point for point in points if point[0] < macs]
        if not below:
            return hull
        step = min(below, key=lambda point: ((point[1] - error) / (macs - point[0]), point[0]))
        hull.append(step)
        macs, error = step[0], step[1]


def _thinned(ranks: list[int]) -> list[int]:
    """At most _MAX_RANKS of the ranks, evenly spaced, including the first and the last."""
    indices = np.unique(np.linspace(0, len(ranks) - 1, min(_MAX_RANKS, len(ranks))).round().astype(int))
    return [ranks[index] for index in indices]


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value}; allowed: above 0, up to 1")
