"""Turns the operations in the graph of an exported program, such as convolutions, back into modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

_aten = torch.ops.aten


def with_layers(network: nn.Module) -> nn.Module:
    """Convert convolutions and fully connected layers of `network`, an exported program's module, to modules, in place.

    A layer takes the place and name of the module that held its weight (`features.0` for `features.0.weight`). An
    operation stays an operation if its weight is computed or shared with other operations, or if no module has its
    options. Any other module is returned unchanged.
    """
    if not isinstance(network, fx.GraphModule):
        return network
    added: dict[tuple[Any, ...], str] = {}
    found = dict.fromkeys(node for node in network.graph.nodes if _is_layer(node))
    # A weight that other operations read must stay, because a replacement of the layer may not have it.
    shared = {
        node.target for node in network.graph.find_nodes(op="get_attr") if any(user not in found for user in node.users)
    }
    for node in found:
        arguments = _arguments(node)
        weight, bias = arguments["weight"], arguments["bias"]
        if weight.target in shared or (bias and bias.target in shared):
            continue
        key = (node.target, str(weight.target), str(bias and bias.target), _options(arguments))
        if key not in added:
            added[key] = _free_name(network, str(weight.target))
            kernel = _parameter(network, weight)
            with torch.device("meta"):
                layer = _MAKERS[node.target](kernel, bias is not None, arguments).eval()
            layer.register_parameter("weight", kernel)
            layer.register_parameter("bias", bias and _parameter(network, bias))
            network.add_submodule(added[key], layer)
        with network.graph.inserting_before(node):
            call = network.graph.call_module(added[key], (arguments["input"],))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        network.graph.erase_node(node)
    if added:
        network.graph.eliminate_dead_code()
        network.recompile()
        _remove_unused(network)
    return network


def _is_layer(node: fx.Node) -> bool:
    """Whether the node is an operation of _MAKERS whose weights are stored, not computed."""
    if node.op != "call_function" or node.target not in _MAKERS:
        return False
    arguments = _arguments(node)
    return all(
        part is None or (isinstance(part, fx.Node) and part.op == "get_attr")
        for part in (arguments["weight"], arguments["bias"])
    )


def _convolution(weight: nn.Parameter, has_bias: bool, options: dict[str, Any]) -> nn.Module:
    groups, padding = int(options["groups"]), options["padding"]
    return nn.Conv2d(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]),  # type: ignore[arg-type]
        _pair(options["stride"]), padding if isinstance(padding, str) else _pair(padding), _pair(options["dilation"]),
        groups, bias=has_bias,
    )  # fmt: skip


def _linear(weight: nn.Parameter, has_bias: bool, options: dict[str, Any]) -> nn.Module:
    return nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)


_MAKERS: dict[OpOverload, Callable[[nn.Parameter, bool, dict[str, Any]], nn.Module]] = {
    _aten.conv2d.default: _convolution,
    _aten.conv2d.padding: _convolution,
    _aten.linear.default: _linear,
}


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Arguments by name, with the operation's defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    values = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    values.update(zip((argument.name for argument in schema), node.args, strict=False))
    values.update(node.kwargs)
    return values


def _options(arguments: dict[str, Any]) -> str:
    return repr({name: value for name, value in arguments.items() if name not in ("input", "weight", "bias")})


def _pair(value: Any) -> tuple[int, int]:
    pair = [value] * 2 if isinstance(value, int) else list(value)
    return pair[0], pair[-1]


def _parameter(network: fx.GraphModule, node: fx.Node) -> nn.Parameter:
    value: Any = reduce(getattr, str(node.target).split("."), network)
    return value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=False)


def _free_name(network: fx.GraphModule, weight: str) -> str:
    """Name of the module that held the weight or, if that holds more than one layer, a new name next to it."""
    holder, _, last = weight.rpartition(".")
    if holder and last == "weight":
        module: Any = reduce(getattr, holder.split("."), network)
        tensors = {*module._parameters, *module._buffers}
        if tensors <= {"weight", "bias"} and not module._modules and type(module) is nn.Module:
            return holder
    name = f"{weight.replace('.', '_')}_layer"
    while hasattr(network, name):
        name += "_"
    return name


def _remove_unused(network: fx.GraphModule) -> None:
    """Remove weights that no node reads any more; they now belong to the layers."""
    read = {str(node.target) for node in network.graph.nodes if node.op == "get_attr"}
    called = {str(node.target) for node in network.graph.nodes if node.op == "call_module"}
    for name, _ in [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]:
        if name not in read and name.rpartition(".")[0] not in called:
            holder, _, last = name.rpartition(".")
            delattr(network.get_submodule(holder), last)
