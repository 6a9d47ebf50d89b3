"""Branches of a traced graph: dependencies, critical path, runs between forks and joins."""

from __future__ import annotations

import pytest
import torch
from critical_path import critical_path
from torch import fx, nn

from multi_dnn_ros.graph.branches import (
    DeviceOperation,
    SerialGraphError,
    branches,
    device_operations,
    estimated_s,
    levels,
    origins,
)
from multi_dnn_ros.models.trace import trace


class TwoBranches(nn.Module):
    """A fork into one long and one short branch, and their join."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.long = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))
        self.short = nn.Conv2d(8, 8, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        forked = self.first(image)
        return torch.cat([self.long(forked), self.short(forked)], 1)


class Viewed(nn.Module):
    """Chunks and transposed views between the operations."""

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = torch.chunk(value.relu(), 2, 1)
        return left.transpose(1, 2).exp(), right.unsqueeze(0).sigmoid()


def traced(module: nn.Module, *shape: int) -> fx.GraphModule:
    torch.manual_seed(0)
    return trace(module.eval(), (torch.rand(*shape),))


def names(graph_module: fx.GraphModule) -> dict[str, DeviceOperation]:
    return {each.name: each for each in device_operations(graph_module)}


def test_the_branches_of_a_fork_and_their_join_are_found():
    operations = device_operations(traced(TwoBranches(), 1, 3, 16, 16))
    first, *_ = (each.name for each in operations if not each.sources)
    joined = operations[-1]
    runs = branches(operations)
    assert [len(run) for run in runs] == [1, 2, 1, 1]
    assert runs[0] == (first,)
    assert runs[-1] == (joined.name,)
    assert set(joined.sources) == {runs[1][-1], runs[2][-1]}
    assert levels(operations) == {runs[0][0]: 0, runs[1][0]: 1, runs[1][1]: 2, runs[2][0]: 1, runs[3][0]: 3}
    chain, seconds = critical_path(operations)
    assert chain == (*runs[0], *runs[1], *runs[3])
    costs = {each.name: each.cost_s for each in operations}
    assert seconds == pytest.approx(sum(costs[name] for name in chain))
    assert seconds < sum(costs.values())


def test_views_and_selections_are_no_operations_and_pass_on_their_source():
    graph_module = traced(Viewed(), 2, 4, 3)
    operations = names(graph_module)
    assert [name.partition("_")[0] for name in operations] == ["relu", "exp", "sigmoid"]
    assert operations["exp"].sources == operations["sigmoid"].sources == ("relu",)
    origin = {node.name: own.name for node, own in origins(graph_module.graph).items()}
    assert {name for name, own in origin.items() if own == "relu"} >= {"relu", "transpose", "unsqueeze"}


def test_a_reshape_counts_as_an_operation_because_it_may_copy():
    class Reshaped(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.reshape.default(value.relu().transpose(0, 1), [-1]).exp()

    graph_module = fx.symbolic_trace(Reshaped())
    assert len(traced(Viewed(), 2, 4, 3).graph.nodes) > len(names(traced(Viewed(), 2, 4, 3)))
    node = next(node for node in graph_module.graph.nodes if node.target is torch.ops.aten.reshape.default)
    assert origins(graph_module.graph)[node] is node
    assert estimated_s(graph_module, node) == 0.0  # it rarely copies


def test_the_cost_of_a_convolution_grows_with_its_work():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.three = nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 5, padding=2)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.one(image) + self.three(image)

    one, three, total = device_operations(traced(Two(), 1, 64, 64, 64))
    assert three.cost_s > 4 * one.cost_s
    assert total.cost_s > 0


@pytest.mark.parametrize("kind", ["write", "random", "no ATen operation"])
def test_a_graph_whose_order_matters_is_rejected_and_the_operation_is_named(kind: str):
    graph = fx.Graph()
    value = graph.placeholder("value")
    aten = torch.ops.aten
    if kind == "write":
        node = graph.call_function(aten.relu_.default, (value,))
    elif kind == "random":
        node = graph.call_function(aten.rand_like.default, (value,))
    else:
        node = graph.call_function(print, (value,))
    graph.output((node,))
    with pytest.raises(SerialGraphError, match=f"operation {node.name} .* has side effects"):
        device_operations(fx.GraphModule(nn.Module(), graph))


def test_an_empty_graph_has_no_critical_path():
    assert critical_path(()) == ((), 0.0)
    assert branches(()) == ()
