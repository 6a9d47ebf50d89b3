"""A decomposed layer computes the same as the layer: exactly at full rank, approximately for weights of low rank."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from multi_dnn_ros.compression.decompose import NothingToDecompose, decompose
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.compression.ranks import Budget, Ratio, Rounding
from multi_dnn_ros.compression.tucker import decomposed_layer
from multi_dnn_ros.models.decomposed import SvdPlan, TuckerPlan, apply_plan
from multi_dnn_ros.models.errors import ModelError

pairs = st.tuples


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Conv2d:
    groups = draw(st.integers(1, 3))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    strides = st.integers(1, 3)
    same = draw(st.booleans())
    stride = (1, 1) if same else draw(pairs(strides, strides))
    padding = "same" if same else draw(pairs(st.integers(0, 2), st.integers(0, 2)))
    return nn.Conv2d(
        groups * draw(st.integers(1, 6)),
        groups * draw(st.integers(1, 6)),
        draw(pairs(st.integers(1, 3), st.integers(2, 3))),
        stride,
        padding,
        draw(pairs(st.integers(1, 2), st.integers(1, 2))),
        groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )


def randomize(layer: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)


@settings(max_examples=60)
@given(convolutions(), st.integers(0, 2), st.integers(0, 1000))
def test_full_rank_is_the_same_convolution(layer: nn.Conv2d, which: int, seed: int) -> None:
    randomize(layer, seed)
    inputs, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    plan = TuckerPlan(in_rank=None if which == 1 else inputs, out_rank=None if which == 2 else outputs)
    chain, error = decomposed_layer(layer, plan)
    x = torch.randn(2, layer.in_channels, 9, 10, generator=torch.Generator().manual_seed(seed))
    expected = layer(x)
    assert error < 1e-5
    torch.testing.assert_close(chain(x), expected, atol=1e-4 * max(1.0, float(expected.detach().abs().max())), rtol=0)


@settings(max_examples=40)
@given(convolutions(), st.data())
def test_error_is_that_of_the_reconstructed_weight(layer: nn.Conv2d, data: st.DataObject) -> None:
    """The product of the chain's weights is the weight that it approximates."""
    randomize(layer)
    inputs, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    assume(inputs > 1 and outputs > 1)
    plan = TuckerPlan(in_rank=data.draw(st.integers(1, inputs)), out_rank=data.draw(st.integers(1, outputs)))
    chain, error = decomposed_layer(layer, plan)
    parts = zip(*(p.weight.chunk(layer.groups) for p in (chain.in_factor, chain.core, chain.out_factor)), strict=True)
    weights = [torch.einsum("os,sryx,ri->oiyx", last[..., 0, 0], core, first[..., 0, 0]) for first, core, last in parts]
    difference = (torch.cat(weights) - layer.weight).norm() / layer.weight.norm()
    assert float(difference) == pytest.approx(error, abs=2e-5)


@pytest.mark.parametrize(
    ("layer", "plan", "message"),
    [
        (
            nn.Conv2d(4, 6, 3),
            TuckerPlan(in_rank=5, out_rank=2),
            r"in_rank 5: the layer has 4 channels.*: 1 to 4",
        ),
        (nn.Conv2d(4, 6, 3, groups=2), TuckerPlan(in_rank=2, out_rank=4), r"out_rank 4: .* 3 channels per group"),
        (nn.Linear(4, 6), SvdPlan(rank=5), r"rank 5: .*allowed: 1 to 4"),
        (nn.Linear(4, 6), TuckerPlan(in_rank=1, out_rank=1), r"is Linear; tucker2 is for Conv2d"),
        (nn.ConvTranspose2d(4, 6, 3), TuckerPlan(in_rank=1, out_rank=1), r"is ConvTranspose2d"),
    ],
)
def test_a_plan_that_does_not_fit(layer: nn.Module, plan: TuckerPlan | SvdPlan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decomposed_layer(layer, plan)
    with pytest.raises(ModelError, match=f"file.safetensors: plan of layer '0': {message}"):
        apply_plan(nn.Sequential(layer), {"0": plan}, "file.safetensors")


def test_weights_that_are_not_finite() -> None:
    layer = nn.Conv2d(4, 4, 3)
    layer.weight.data[0, 0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"layer 0: its weights are not finite"):
        decompose(nn.Sequential(layer), (torch.zeros(1, 4, 8, 8),), Budget(0.4, 10_000))


class Mixed(nn.Module):
    """One layer per outcome; `twice` is used at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.twice = nn.Conv2d(32, 32, 3, padding=1)
        self.point = nn.Conv2d(32, 32, 1)
        self.depth = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.grouped = nn.Conv2d(32, 64, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(64, 8, 2, 2)
        self.unused = nn.Conv2d(32, 32, 3)
        self.fc = nn.Linear(8, 64)
        self.alias = self.twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.stem(x))
        x = x + self.alias(x[..., ::2, ::2]).mean()
        x = self.up(self.grouped(self.depth(self.point(x))))
        return self.fc(x.mean((2, 3)))


def test_every_layer_is_accounted_for() -> None:
    torch.manual_seed(0)
    network = Mixed().eval()
    inputs = (torch.randn(1, 3, 16, 16),)
    before = cost(network, inputs)
    outcomes = {each.name: each for each in decompose(network, inputs, Ratio(0.5, Rounding(8, 8)), linear=True)}
    assert outcomes["twice"].plan == TuckerPlan(in_rank=16, out_rank=16)
    assert outcomes["grouped"].plan == TuckerPlan(in_rank=8, out_rank=16)
    assert network.twice is network.alias
    assert network.grouped.core.groups == network.grouped.in_factor.groups == 2
    reasons = {name: outcome.reason for name, outcome in outcomes.items() if outcome.plan is None}
    assert reasons["point"].startswith("1x1")
    assert reasons["depth"].startswith("depthwise")
    assert reasons["up"].startswith("transposed")
    assert reasons["unused"] == "takes no part in inference"
    assert reasons["fc"].startswith("fully connected, fewer than")
    assert all(reasons.values())
    after, listed = cost(network, inputs), list(outcomes.values())
    assert before.macs == sum(outcome.macs[0] for outcome in listed)
    assert before.macs - after.macs == sum(outcome.macs[0] - outcome.macs[1] for outcome in listed) > 0
    dropped = sum(outcome.parameters[0] - outcome.parameters[1] for outcome in listed)
    assert before.parameters - after.parameters == dropped


def test_nothing_to_decompose() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8))
    inputs = (torch.zeros(1, 3, 8, 8),)
    with pytest.raises(NothingToDecompose, match=r"1x1: is a matrix already; depthwise"):
        decompose(network, inputs, Ratio(0.5))
    small = nn.Sequential(nn.Conv2d(3, 8, 3))
    with pytest.raises(NothingToDecompose, match=r"worth decomposing: its ranks would be all of its channels"):
        decompose(small, inputs, Ratio(0.5))
    assert isinstance(small[0], nn.Conv2d)
    with pytest.raises(ModelError, match=r"cannot be run on inputs \[\(1, 3, 8, 8\)\]"):
        decompose(nn.Sequential(nn.Conv2d(4, 8, 3)), inputs, Ratio(0.5))
