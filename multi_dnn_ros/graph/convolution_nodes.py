"""Arguments of convolutions in a traced graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
CONVOLUTIONS = (aten.conv2d.default, aten.convolution.default)


def is_transposed(node: fx.Node) -> bool:
    """Whether it is a transposed convolution."""
    return node.target is aten.convolution.default and any(arguments_of(node, "transposed"))


def traced(node: fx.Node) -> torch.Tensor | None:
    """The (fake) tensor of the node's traced value; None for anything else."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def convolution_arguments(node: fx.Node) -> tuple[Any, ...]:
    """(input, weight, bias, stride, padding, dilation, groups)."""
    image, weight, bias, *lengths, groups = arguments_of(
        node, "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    return image, weight, bias, *(_pair(each) for each in lengths), groups


def arguments_of(node: fx.Node, *names: str) -> tuple[Any, ...]:
    """The named arguments of an ATen operation, given by position or by name, or their default values."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values = dict(node.kwargs)
    for position, argument in enumerate(node.target._schema.arguments):
        given = position < len(node.args)
        values.setdefault(argument.name, node.args[position] if given else argument.default_value)
    return tuple(values[name] for name in names)


def _pair(lengths: int | Sequence[int]) -> list[int]:
    both = [lengths] if isinstance(lengths, int) else list(lengths)
    return both * 2 if len(both) == 1 else both
