"""Converts a prepared ONNX graph to a PyTorch module, for captured graphs on a GPU and for the offline tools."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_graph import quiet_session
from multi_dnn_ros.models.onnx_network import first_difference

#: Largest difference of an output from ONNX Runtime's, relative to the output's largest value, and the share of values
#: that may differ by more: where two scores are nearly equal, rounding may exchange their rows.
_TOLERANCE, _MAX_DIFFERENT = 1e-2, 0.05
_INSTEAD = (
    "on a CPU, ONNX Runtime runs the file as it is; for other uses export it without the operator, or register a "
    "converter with onnx2torch's add_converter"
)


def convert(model: Any) -> fx.GraphModule:
    """Convert a prepared onnx.ModelProto to a network in eval mode.

    The network takes (1, 3, height, width) float32 and returns a tensor, or a list if there are several outputs. Raises
    ModelError, which names the operator, also if the size of the image is free and if the outputs for noise differ from
    those of ONNX Runtime.
    """
    shape = [side.dim_value for side in model.graph.input[0].type.tensor_type.shape.dim]
    if not all(shape):
        raise ModelError("leaves the size of its image open; set input_width and input_height, or --size")
    model = copy.deepcopy(model)
    _make_pads_explicit(model)
    with optional("an ONNX file"):
        import onnx2torch

        from multi_dnn_ros.models.onnx_intake import operators  # noqa: F401  # adds its converters
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about deviations that the comparison with ONNX Runtime finds
            network = _with_plain_names(onnx2torch.convert(model).eval())
            image = np.random.default_rng(0).random(shape, np.float32)
            with torch.inference_mode():
                found = [output.numpy() for output in pytree.tree_leaves(network(torch.from_numpy(image)))]
    except Exception as error:  # whatever the converters raise
        raise ModelError(
            f"cannot be converted to PyTorch, which this use of it needs: {summarize_error(error)}; {_INSTEAD}"
        ) from None
    if difference := first_difference(
        found, quiet_session(model).run(None, {model.graph.input[0].name: image}), _TOLERANCE, _MAX_DIFFERENT
    ):
        raise ModelError(
            f"converted to PyTorch, its {difference} from ONNX Runtime's; run it on the CPU by ONNX Runtime, or export "
            "it with another opset or as a .pt2 file"
        )
    return network


def _make_pads_explicit(model: Any) -> None:
    """Replace, in place, auto_pad, which TensorFlow's exporters write, by pads (ONNX operator Conv, auto_pad)."""
    from onnx import helper

    graph = model.graph
    shapes = {
        value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    for node in graph.node:
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type not in ("Conv", "MaxPool") or given.get("auto_pad") not in (b"SAME_UPPER", b"SAME_LOWER"):
            continue
        kernel = given.get("kernel_shape") or shapes[node.input[1]][2:]
        ones = [1] * len(kernel)
        small, large = [], []
        for length, result, size, stride, dilation in zip(
            shapes[node.input[0]][2:], shapes[node.output[0]][2:], kernel, given.get("strides", ones),
            given.get("dilations", ones), strict=True,
        ):  # fmt: skip
            total = max((result - 1) * stride + (size - 1) * dilation + 1 - length, 0)
            small.append(total // 2)
            large.append(total - total // 2)
        pads = small + large if given["auto_pad"] == b"SAME_UPPER" else large + small
        for attribute in [each for each in node.attribute if each.name in ("auto_pad", "pads")]:
            node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("pads", pads))


def _with_plain_names(network: fx.GraphModule) -> fx.GraphModule:
    """Rename modules, in place, so that their names consist of letters, digits and underscores.

    onnx2torch names them after ONNX nodes, such as `model.0/conv/Conv`. The names become part of the names of weights
    in a .pt2 file made from the network, which is refused if they contain other characters (weights.check_archive).
    """
    names = {
        name: f"{re.sub(r'[^a-zA-Z0-9]+', '_', name).strip('_') or 'node'}_{number}"
        for number, name in enumerate(network._modules)
    }
    network._modules = {names[name]: module for name, module in network._modules.items()}
    for node in network.graph.nodes:
        if node.op in ("call_module", "get_attr"):
            name, dot, rest = node.target.partition(".")
            node.target = names.get(name, name) + dot + rest
    network.recompile()
    return network
