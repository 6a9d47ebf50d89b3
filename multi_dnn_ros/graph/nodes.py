"""Properties of nodes of a traced graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument


def is_selection(node: fx.Node) -> bool:
    """Whether the node only selects one item of another node's tuple or list."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def is_repeatable(node: fx.Node) -> bool:
    """Whether the node is deterministic and has no side effect."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return not (node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags)
    return is_selection(node)


def is_write(node: fx.Node) -> bool:
    """Whether the node writes into one of its inputs (a model with state between frames)."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def attribute(graph_module: fx.GraphModule, node: fx.Node) -> Any:
    """The parameter, buffer or submodule that a get_attr node refers to."""
    value: Any = graph_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def tensor_of(value: Argument) -> torch.Tensor | None:
    """The (fake) tensor of the node's traced value; None for anything else."""
    traced = value.meta.get("val") if isinstance(value, fx.Node) else None
    return traced if isinstance(traced, torch.Tensor) else None
