"""Memory that a traced graph needs, from the traced shapes."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

from multi_dnn_ros.graph.branches import origins
from multi_dnn_ros.graph.nodes import attribute
from multi_dnn_ros.graph.operations import bytes_of


def weight_bytes(graph_module: fx.GraphModule) -> int:
    """Bytes of the parameters and buffers that the graph reads, each once."""
    read = [attribute(graph_module, node) for node in graph_module.graph.nodes if node.op == "get_attr"]
    tensors = {id(each): each for each in read if isinstance(each, torch.Tensor)}
    return sum(map(bytes_of, tensors.values()))


def peak_bytes(graph_module: fx.GraphModule) -> int:
    """Largest number of bytes of inputs and results that exist at the same time while the operations run in order.

    A result is freed after its last reader, as by a caching allocator; temporary memory of operations is not included.
    """
    graph = graph_module.graph
    origin = origins(graph)
    last_reader: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last_reader[origin[source]] = node
    freed_after: dict[fx.Node, list[fx.Node]] = {}
    for owner, reader in last_reader.items():
        freed_after.setdefault(reader, []).append(owner)
    used = peak = 0
    for node in graph.nodes:
        if node.op not in ("output", "get_attr") and origin[node] is node:
            used += _size(node)
        peak = max(peak, used)
        used -= sum(_size(owner) for owner in freed_after.get(node, ()) if owner.op != "get_attr")
    return peak


def _size(node: fx.Node) -> int:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return sum(bytes_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
