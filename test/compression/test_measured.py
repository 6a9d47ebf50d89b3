"""Measured ranks, with a fake clock: only faster layers are decomposed, and the network never gets slower."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.compression.decompose import decompose, plan_of
from multi_dnn_ros.compression.layers import list_layers
from multi_dnn_ros.compression.measured import Measured
from multi_dnn_ros.compression.ranks import Ratio
from multi_dnn_ros.models.decomposed import TuckerConv2d
from multi_dnn_ros.planning.timing import Target

SHAPE = (1, 16, 16, 16)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 64, 3), nn.Conv2d(64, 64, 3), nn.Conv2d(64, 96, 3), nn.Conv2d(96, 96, 3)).eval()


def clock(layer_ms, whole_ms=lambda decomposed, instances: 10.0 - decomposed):
    """Returns milliseconds by a rule: of layers, or of networks by the number of decomposed layers."""

    def compare(modules, shape, target, counts):
        if not isinstance(modules[0], nn.Sequential):
            return {instances: [layer_ms(module) for module in modules] for instances in counts}
        decomposed = [sum(isinstance(part, TuckerConv2d) for part in whole) for whole in modules]
        return {instances: [whole_ms(count, instances) for count in decomposed] for instances in counts}

    return compare


def policy(compare) -> Measured:
    target = Target(torch.device("cpu"), "eager", Eager, rounds=3)
    return Measured(Ratio(0.4), target, network(), SHAPE, compare=compare, instances=4)


def width(module: nn.Module) -> int:
    """Core channels: the criterion of a clock that prefers wide cores."""
    return module.core.out_channels if isinstance(module, TuckerConv2d) else 0


def test_the_fastest_candidate_is_selected_and_has_at_least_the_base_ranks() -> None:
    inputs, chooser = (torch.zeros(SHAPE),), policy(clock(lambda m: 0.9 - width(m) / 1000 if width(m) else 1.0))
    outcomes = {o.name: o for o in decompose(network(), inputs, chooser, may_keep_all=True)}
    base = Ratio(0.4).choose(list_layers(network(), inputs))
    assert sum(outcome.plan is not None for outcome in outcomes.values()) == 4
    for name, outcome in outcomes.items():
        for rank, minimum in ((outcome.plan.in_rank, base[name].plan.in_rank),
                            (outcome.plan.out_rank, base[name].plan.out_rank)):  # fmt: skip
            assert rank is None or rank >= minimum
        assert "original" not in outcome.reason
        assert "original 1.0000 ms" in outcome.details


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_layers_are_restored_until_the_network_is_faster(limit: int) -> None:
    """More than `limit` decomposed layers are slower, but only under contention."""

    def whole_ms(decomposed: int, instances: int) -> float:
        return 12.0 if decomposed > limit and instances == 4 else 10.0 - decomposed

    chooser = policy(clock(lambda module: 0.5 if width(module) else 1.0, whole_ms))
    outcomes = decompose(network(), (torch.zeros(SHAPE),), chooser, may_keep_all=True)
    assert len(plan_of(outcomes)) <= limit
    assert all(after < before for before, after in chooser.accepted.values())
    assert list(chooser.accepted) == ([1, 4] if plan_of(outcomes) else [])
    restored = [outcome.reason for outcome in outcomes if outcome.reason.startswith("restored")]
    assert len(restored) == 4 - len(plan_of(outcomes))
    assert all("4 concurrent copies of the network took 12.0000 ms against 10.0000 ms" in reason for reason in restored)
