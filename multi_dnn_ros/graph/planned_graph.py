"""A traced graph with its operations in the order of a stream plan: what every way of running the plan needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from multi_dnn_ros.graph.branches import origins
from multi_dnn_ros.graph.nodes import attribute
from multi_dnn_ros.graph.stream_plan import Step, StreamPlan

Values = dict[fx.Node, Any]


@dataclass(frozen=True)
class PlannedOperation:
    """step: the step of the plan. node: an operation or a segment, which launches its work. views: views of its result
    and items of it, computed after it.
    """

    step: Step
    node: fx.Node
    views: tuple[fx.Node, ...]


class PlannedGraph:
    """operations: in the order of the plan. views_of_inputs: views of inputs and parameters, computed before them."""

    def __init__(self, graph_module: fx.GraphModule, plan: StreamPlan) -> None:
        """Parameters are read here, so the graph must already be on its device."""
        self.plan = plan
        self.graph_module = graph_module  # keeps the parameters alive
        graph = graph_module.graph
        self._inputs = list(graph.find_nodes(op="placeholder"))
        self._results: Any = graph.output_node().args[0]
        self._constants = {node: attribute(graph_module, node) for node in graph.nodes if node.op == "get_attr"}
        origin = origins(graph)
        views: dict[fx.Node, list[fx.Node]] = {node: [] for node in origin.values()}
        for node, source in origin.items():
            if node is not source:
                views[source].append(node)
        self.views_of_inputs = [node for source in (*self._inputs, *self._constants) for node in views.get(source, ())]
        by_name = {node.name: node for node in origin}
        self.operations = [
            PlannedOperation(step, by_name[step.name], tuple(views[by_name[step.name]])) for step in plan.steps
        ]

    def values(self, carried: Sequence[torch.Tensor]) -> Values:
        """The values at the start of a run: inputs and parameters. carried: the graph's inputs."""
        return {**self._constants, **dict(zip(self._inputs, carried, strict=True))}

    def results(self, values: Values) -> tuple[torch.Tensor, ...]:
        """The graph's outputs among the values at the end of a run."""
        outputs: tuple[torch.Tensor, ...] = fx.node.map_arg(self._results, values.__getitem__)
        return outputs

    def compute(self, node: fx.Node, values: Values) -> None:
        """Compute the value of an operation, or of a segment, and add it to `values`."""
        args, kwargs = arguments(node, values)
        # Looked up here, because a segment may be replaced by its compiled form.
        target = self.graph_module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        assert callable(target)
        values[node] = target(*args, **kwargs)


def arguments(node: fx.Node, values: Values) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional, keyword) arguments of an operation, with nodes replaced by their values."""
    found: tuple[tuple[Any, ...], dict[str, Any]] = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return found
