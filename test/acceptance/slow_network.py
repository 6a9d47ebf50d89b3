"""A detector that takes about a tenth of a second per frame on one core, and finds nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_CHANNELS, _LAYERS = 64, 6


def write_slow_network(path: Path) -> Path:
    """Write an .onnx file with the output of YOLOv8, (1, 4 + 1 class, N), for images of 256 x 256 pixels."""
    random = np.random.default_rng(0)
    weights = {"shape": np.array([1, 5, 1024])}
    nodes = []
    features = "images"
    for layer in range(_LAYERS + 2):
        first, last = layer == 0, layer == _LAYERS + 1
        channels, into = 3 if first else _CHANNELS, 5 if last else _CHANNELS
        weights[f"weight{layer}"] = random.normal(0, 0.01, (into, channels, 3, 3)).astype(np.float32)
        stride = 2 if first else 4 if last else 1
        sizes = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [stride] * 2}
        nodes.append(helper.make_node("Conv", [features, f"weight{layer}"], [f"sum{layer}"], **sizes))
        nodes.append(helper.make_node("Relu", [f"sum{layer}"], [features := f"features{layer}"]))
    nodes.append(helper.make_node("Reshape", [features, "shape"], ["output0"]))
    image, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                     for name, shape in (("images", [1, 3, 256, 256]), ("output0", [1, 5, 1024])))  # fmt: skip
    constants = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "slow", [image], [output], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
