"""Merged siblings compute the same as separate ones, for any graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.nn import functional
from torchvision.models.googlenet import Inception

from multi_dnn_ros.benchmark.paper import branch_networks
from multi_dnn_ros.benchmark.paper.branch_networks import make_network
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.graph.siblings import find_siblings, merge_siblings
from multi_dnn_ros.graph.trace import trace

aten = torch.ops.aten


def convolutions(graph_module: fx.GraphModule) -> int:
    return sum(node.target in (aten.conv2d.default, aten.linear.default) for node in graph_module.graph.nodes)


def check_equal(module: nn.Module, *inputs: torch.Tensor) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """(separate, merged), after checking that results have equal shapes, dtypes and strides and agree within 1e-5."""
    separate = trace(module.eval(), inputs, fold_batch_norm=True)
    merged = merge_siblings(separate)
    if merged is not None:
        for image in (inputs, tuple(-2.0 * each for each in inputs)):
            with torch.inference_mode():
                expected, results = separate(*image), merged(*image)
            assert len(results) == len(expected)
            for result, right in zip(results, expected, strict=True):
                assert (result.shape, result.dtype) == (right.shape, right.dtype)
                assert result.stride() == right.stride() or right.numel() == 0 or 1 in right.shape
                scale = max(1.0, float(right.abs().max()))
                torch.testing.assert_close(result, right, rtol=0.0, atol=1e-5 * scale)
        for node in merged.graph.nodes:  # the traced values describe the merged graph
            assert node.op in ("output", "get_attr") or "val" in node.meta
    return separate, merged


class Forks(nn.Module):
    """A random network: every layer reads one of the earlier tensors. layers: (source, kind, channels, ...)."""

    def __init__(self, layers: list[dict[str, Any]]) -> None:
        super().__init__()
        self.plan = layers
        channels = [3]
        made = []
        for each in layers:
            padding = each["kernel"] // 2
            made.append(
                nn.Conv2d(
                    channels[each["source"]], each["channels"], each["kernel"], padding=padding, bias=each["bias"],
                )
            )  # fmt: skip
            channels.append(each["channels"])
        self.layers = nn.ModuleList(made)
        self.linear = nn.ModuleList(nn.Linear(6, outputs, bias=bias) for outputs, bias in ((4, True), (2, False)))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, used = [image], {0}
        for each, layer in zip(self.plan, self.layers, strict=True):
            value = layer(values[each["source"]])
            used.add(each["source"])
            activation = each["activation"]
            values.append(activation(value) if activation is not None else value)
        ends = [value for index, value in enumerate(values) if index not in used]
        flat = [value.permute(0, 2, 3, 1).reshape(value.shape[0], -1) for value in ends]
        rows = [layer(values[-1]).transpose(1, 2).flatten(1) for layer in self.linear]
        return (torch.cat(flat, 1), *ends, *rows, ends[0].flatten(2).transpose(1, 2))


LAYER = st.fixed_dictionaries(
    {
        "source": st.integers(0, 7),
        "channels": st.integers(1, 5),
        "kernel": st.sampled_from([1, 3]),
        "bias": st.booleans(),
        "activation": st.sampled_from([None, torch.relu, functional.silu, torch.sigmoid]),
    }
)


@given(st.lists(LAYER, min_size=2, max_size=6), st.integers(1, 2))
@settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
def test_any_graph_computes_the_same_when_its_siblings_are_merged(layers: list[dict[str, Any]], images: int) -> None:
    torch.manual_seed(0)
    layers = [{**each, "source": each["source"] % (index + 1)} for index, each in enumerate(layers)]
    separate, merged = check_equal(Forks(layers), torch.randn(images, 3, 5, 6))
    groups = find_siblings(separate)
    assert merged is not None  # the two linear layers are siblings
    assert convolutions(merged) == convolutions(separate) - sum(len(group.operations) - 1 for group in groups)
    assert not find_siblings(merged)


@pytest.mark.parametrize(
    ("name", "size", "groups"),
    [
        ("blocks", 16, 2),
        pytest.param("googlenet", 64, 9, marks=pytest.mark.long),
        pytest.param("inception_v3", 96, 10, marks=pytest.mark.long),
    ],
)
def test_the_1x1_convolutions_of_inception_blocks_are_merged_with_their_relu(name: str, size: int, groups: int) -> None:
    torch.manual_seed(0)
    if name == "blocks":  # the first two of GoogLeNet, with fewer channels
        network = nn.Sequential(Inception(3, 8, 4, 8, 4, 8, 8), Inception(32, 8, 4, 8, 4, 8, 8))
    else:
        network = getattr(torchvision.models, name)(weights=None, init_weights=False, aux_logits=True)
    separate, merged = check_equal(network, torch.randn(1, 3, size, size))
    assert merged is not None
    found = find_siblings(separate)
    assert len(found) >= groups
    relus = [sum(node.target is aten.relu.default for node in each.graph.nodes) for each in (separate, merged)]
    assert relus[0] - relus[1] == sum(len(each.operations) - 1 for each in found)


def test_the_query_key_and_value_layers_of_equal_heads_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, heads = 2, 2  # the minimum for layers that share the template, and for siblings
    monkeypatch.setattr(branch_networks, "LAYERS", layers)
    monkeypatch.setitem(branch_networks.ENCODERS, "encoder-equal", (1,) * heads)
    network = make_network("encoder-equal", (64, 64))
    separate, merged = check_equal(network.module, *network.inputs)
    assert merged is not None
    counts = [sum(node.target is aten.linear.default for node in each.graph.nodes) for each in (separate, merged)]
    assert counts[0] == layers * (heads * 5 + 3)  # query, and key and value of both maps; join and feed-forward
    # The template is the same in every layer, so the layers of all blocks that read it become one.
    assert counts[1] == layers * (1 + 3) + 1


def test_merged_parameters_replace_the_separate_ones_and_are_shared() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.alone = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 5, 1), nn.Conv2d(9, 2, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.alone(torch.cat([self.left(image), self.right(image)], 1))
            return result

    module = Two()
    separate = trace(module.eval(), (torch.zeros(1, 3, 4, 4),))
    known: dict[tuple[int, ...], torch.Tensor] = {}
    one, other = (merge_siblings(separate, known) for _ in range(2))
    assert one is not None
    assert other is not None
    held = [*one.parameters(), *one.buffers()]
    assert sorted(tensor.numel() for tensor in held) == [2, 9, 18, 27]
    assert any(tensor is module.alone.weight for tensor in held)
    assert {id(tensor) for tensor in one.buffers()} == {id(tensor) for tensor in other.buffers()}
    assert convolutions(separate) == 3  # not changed


class Pair(nn.Module):
    """Two convolutions of the same image. different: arguments of the second one."""

    def __init__(self, **different: Any) -> None:
        super().__init__()
        common = {"kernel_size": 3, "padding": 1}
        self.left, self.right = nn.Conv2d(4, 4, **common), nn.Conv2d(4, 4, **{**common, **different})

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(image), self.right(image)


@pytest.mark.parametrize(
    "different", [{"stride": 2}, {"dilation": 2, "padding": 2}, {"groups": 2}, {"kernel_size": 1}, {"padding": 0}]
)
def test_operations_of_other_geometry_are_not_merged(different: dict[str, Any]) -> None:
    image = (torch.zeros(1, 4, 8, 8),)
    assert len(find_siblings(trace(Pair().eval(), image))) == 1
    assert merge_siblings(trace(Pair(**different).eval(), image)) is None


def test_a_result_whose_strides_matter_is_not_merged() -> None:
    class Strided(Pair):
        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.left(image), self.right(image).as_strided((4, 4), (4, 1))

    assert merge_siblings(trace(Strided().eval(), (torch.zeros(1, 4, 8, 8),))) is None


def test_a_graph_that_writes_is_not_merged() -> None:
    graph_module = trace(Pair().eval(), (torch.zeros(1, 4, 8, 8),))
    node = next(node for node in graph_module.graph.nodes if node.target is aten.conv2d.default)
    with graph_module.graph.inserting_after(node):
        graph_module.graph.call_function(aten.relu_.default, (node,))
    assert find_siblings(graph_module) == ()


def test_a_stage_of_a_cut_network_can_be_merged() -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 4, 8, 8)
    (stage,) = cut_module(Pair().eval(), (image,), 1)
    merged = merge_siblings(stage.graph)
    assert merged is not None
    with torch.inference_mode():
        for result, right in zip(merged(image), stage((image,)), strict=True):
            torch.testing.assert_close(result, right, rtol=0.0, atol=1e-5)
