"""Every policy meets its criterion, with aligned ranks within the channels, and never with more MACs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from multi_dnn_ros.compression.layers import Layer, list_layers
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.compression.ranks import Budget, Ratio, Rounding
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.sources import load_network


def layers_of(*convolutions: nn.Conv2d, side: int = 16) -> list[Layer]:
    network = nn.Sequential(*convolutions).eval()
    return list_layers(network, (torch.zeros(1, convolutions[0].in_channels, side, side),))


@settings(max_examples=50)
@given(st.floats(0.01, 1.0), st.integers(1, 64), st.integers(1, 64), st.integers(1, 200), st.integers(1, 200))
def test_ratio_stays_within_the_channels(ratio: float, alignment: int, floor: int, inputs: int, outputs: int) -> None:
    layer = Layer("x", nn.Conv2d(inputs, outputs, 3, device="meta"), "", (((1, inputs, 8, 8), (1, outputs, 6, 6)),))
    plan = Ratio(ratio, Rounding(alignment, floor)).choose([layer])["x"].plan
    if plan is not None:
        assert layer.macs(plan) < layer.macs()
        for rank, channels in ((plan.in_rank, inputs), (plan.out_rank, outputs)):
            assert rank is None or rank < channels


@settings(max_examples=10)
@given(st.floats(0.05, 0.8), st.integers(0, 100))
def test_budget_is_met_and_not_far_exceeded(cut: float, seed: int) -> None:
    torch.manual_seed(seed)
    layers = layers_of(nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3, groups=2), nn.Conv2d(64, 48, 5))
    total = sum(layer.macs() for layer in layers)
    choices = Budget(cut, total, Rounding(1, 1)).choose(layers)
    saved = sum(layer.macs() - layer.macs(choices[layer.name].plan) for layer in layers)
    assert cut * total <= saved <= cut * total + 0.2 * total


@pytest.mark.parametrize(
    ("builder", "side", "ratio", "cut"),
    [("vgg16", 224, 0.328, 0.81), ("resnet152", 224, 0.375, 0.386), ("inception_v3", 299, 0.312, 0.628),
     ("regnet_y_32gf", 224, 0.40, 0.358)],
)  # fmt: skip
def test_the_paper_s_macs(builder: str, side: int, ratio: float, cut: float) -> None:
    """Uniform ratios that reach the reductions of the paper's figure 3; from shapes only."""
    network = load_network(f"torchvision:{builder}", weights="random").module
    inputs = (torch.zeros(1, 3, side, side),)
    layers = list_layers(network, inputs)
    before = cost(network, inputs).macs
    assert before == sum(layer.macs() for layer in layers)
    choices = Ratio(ratio, Rounding(1, 1)).choose(layers)
    apply_plan(network, {name: choice.plan for name, choice in choices.items() if choice.plan}, "the paper")
    assert cut <= 1 - cost(network, inputs).macs / before < cut + 0.02
