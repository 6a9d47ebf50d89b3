"""Converts a prepared ONNX graph to a PyTorch module, for GPUs and for the offline tools that need PyTorch's graph."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.models.onnx_graph import quiet_options
from multi_dnn_ros.models.onnx_intake.padding import make_pads_explicit
from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

#: Largest difference of an output from ONNX Runtime's, relative to the output's largest value, and the share of values
#: that may differ by more: where two scores are nearly equal, rounding may exchange their rows.
_TOLERANCE, _MAX_DIFFERENT = 1e-2, 0.05
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
            f"has an operator without a converter to PyTorch, which this use of the network needs: {named} in opset "
            f"{versions.get('', 0)}; run it on the CPU by ONNX Runtime, export it without the operator, or register a "
            "converter with onnx2torch's add_converter in your own package"
        )


def convert(model: Any) -> fx.GraphModule:
    """Convert a prepared onnx.ModelProto to a network in eval mode.

    The network takes (1, 3, height, width) float32 and returns a tensor, or a list if there are several outputs. Raises
    Refusal, which names the operator, also if the outputs for noise differ from those of ONNX Runtime. A network that
    is quantized with QuantizeLinear and DequantizeLinear rounds as the file does, in floating point.
    """
    model = _with_float_weights(model)
    make_pads_explicit(model)
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
    network = _with_plain_names(network)
    is_quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)  # which amplifies rounding
    sides = model.graph.input[0].type.tensor_type.shape.dim
    if not is_quantized and all(side.dim_value for side in sides):
        _compare(model, network)
    return network


def _compare(model: Any, network: fx.GraphModule) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    (given,) = session.get_inputs()
    image = np.random.default_rng(0).random(given.shape, np.float32)
    with torch.inference_mode():
        found = [output.double().numpy() for output in pytree.tree_leaves(network(torch.from_numpy(image)))]
    for value, own, reference in zip(model.graph.output, found, session.run(None, {given.name: image}), strict=True):
        right = reference.astype(np.float64)
        if own.shape != right.shape:
            raise Refusal(f"converted to PyTorch, {value.name!r} has the shape {own.shape} instead of {right.shape}")
        scale = np.abs(right[np.isfinite(right)]).max(initial=0.0) or 1.0
        with np.errstate(invalid="ignore"):
            different = ~(
                (own == right) | (np.abs(own - right) <= _TOLERANCE * scale) | (np.isnan(own) & np.isnan(right))
            )
        if different.size and different.mean() > _MAX_DIFFERENT:
            raise Refusal(
                f"converted to PyTorch, {different.mean():.0%} of {value.name!r} differ from ONNX Runtime's; run it on "
                "the CPU by ONNX Runtime, or export it with another opset or as a .pt2 file"
            )


def _with_float_weights(model: Any) -> Any:
    """A copy of an onnx.ModelProto with quantized weights as float32: (x - zero point) * scale."""
    from onnx import ModelProto, numpy_helper

    copied = ModelProto()
    copied.CopyFrom(model)
    graph = copied.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or not all(name in constants for name in node.input if name):
            nodes.append(node)
            continue
        values, *parameters = (numpy_helper.to_array(constants[name]).astype(np.float32) for name in node.input if name)
        options = {attribute.name: attribute.i for attribute in node.attribute}
        if options.get("block_size", 0):
            raise Refusal(f"operator {node_name(node)}: block_size; allowed: one scale for the tensor or per channel")
        along = [1] * values.ndim
        along[options.get("axis", 1) if parameters[0].size > 1 else 0] = -1
        scale, *zero = (each.reshape(along if each.size > 1 else ()) for each in parameters)
        graph.initializer.append(numpy_helper.from_array(
            np.asarray((values - (zero[0] if zero else 0)) * scale, np.float32), node.output[0]
        ))  # fmt: skip
    del graph.node[:]
    graph.node.extend(nodes)
    return copied


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
