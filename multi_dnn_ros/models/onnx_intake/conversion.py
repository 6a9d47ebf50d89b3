"""Converts a prepared ONNX graph to a PyTorch module."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

from torch import fx

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

#: Imported on first use, because it needs the optional onnx2torch.
_CONVERTERS = "multi_dnn_ros.models.onnx_intake.converters"


def check_operators(model: Any) -> None:
    """Raise Refusal if operators of an onnx.ModelProto have no converter; the message names up to five."""
    with optional("an ONNX file"):
        from onnx2torch.node_converters.registry import get_converter

        importlib.import_module(_CONVERTERS)

    versions = {entry.domain: entry.version for entry in model.opset_import}
    missing: dict[str, str] = {}
    for node in model.graph.node:
        try:
            get_converter(operation_type=node.op_type, domain=node.domain, version=versions[node.domain])
        except NotImplementedError:
            missing.setdefault(node.op_type, node_name(node))
    if missing:
        named = ", ".join(list(missing.values())[:5])
        raise Refusal(
            f"an operator without a converter to PyTorch: {named} in opset {versions.get('', 0)}; export the network "
            "without it, or register a converter with onnx2torch's add_converter in your own package"
        )


def convert(model: Any) -> fx.GraphModule:
    """Convert a prepared onnx.ModelProto to a network in eval mode.

    The network takes (1, 3, height, width) float32 and returns a tensor, or a list if there are several outputs. Raises
    Refusal, which names the operator.
    """
    check_operators(model)
    with optional("an ONNX file"):
        import onnx2torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about deviations that the comparison with ONNX Runtime would find
            network = onnx2torch.convert(model).eval()
    except NotImplementedError as error:
        raise Refusal(f"cannot be converted to PyTorch: {summarize_error(error)}") from None
    except Exception as error:
        raise Refusal(f"cannot be converted to PyTorch: {type(error).__name__}: {summarize_error(error)}") from None
    assert isinstance(network, fx.GraphModule)
    return _with_plain_names(network)


def _with_plain_names(network: fx.GraphModule) -> fx.GraphModule:
    """Rename modules, in place, so that their names consist of letters, digits and underscores.

    onnx2torch names them after ONNX nodes, such as `model.0/conv/Conv`. The names become part of the names of weights
    in a .pt2 file made from the network, which is refused if they contain other characters (exported_archive.py).
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name in network._modules:
        plain = first = re.sub(r"\W", "_", name).strip("_") or "node"
        number = 1
        while plain in taken:
            number += 1
            plain = f"{first}_{number}"
        taken.add(plain)
        names[name] = plain
    network._modules = {names[name]: module for name, module in network._modules.items()}
    for node in network.graph.nodes:
        if node.op in ("call_module", "get_attr"):
            name, dot, rest = node.target.partition(".")
            node.target = names.get(name, name) + dot + rest
    network.recompile()
    return network
