"""A detector that takes about a tenth of a second per frame on one core, and finds nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_SIDE, _CHANNELS, _LAYERS = 256, 64, 6


def write_slow_network(path: Path) -> Path:
    """Write an .onnx file with the output of YOLOv8, (1, 4 + 1 class, N), for images of 256 x 256 pixels."""
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes = []

    def add_conv(source: str, target: str, channels: int, into: int, size: int, stride: int) -> None:
        values = random.normal(0, 0.01, (into, channels, size, size)).astype(np.float32)
        weights[f"{target}_weight"] = values
        sides = {"kernel_shape": [size] * 2, "pads": [size // 2] * 4, "strides": [stride] * 2}
        nodes.append(helper.make_node("Conv", [source, f"{target}_weight"], [target], **sides))

    add_conv("images", "features0", 3, _CHANNELS, 3, 2)
    for layer in range(_LAYERS):
        add_conv(f"features{layer}", f"sum{layer}", _CHANNELS, _CHANNELS, 3, 1)
        nodes.append(helper.make_node("Relu", [f"sum{layer}"], [f"features{layer + 1}"]))
    levels = {8: 4, 16: 8, 32: 16}  # stride in pixels of the image: in cells of the features
    for stride, cells in levels.items():
        add_conv(f"features{_LAYERS}", f"all{stride}", _CHANNELS, 5, 1, cells)
        weights[f"shape{stride}"] = np.array([1, 5, (_SIDE // stride) ** 2])
        nodes.append(helper.make_node("Reshape", [f"all{stride}", f"shape{stride}"], [f"level{stride}"]))
    nodes.append(helper.make_node("Concat", [f"level{stride}" for stride in levels], ["output0"], axis=2))
    rows = sum((_SIDE // stride) ** 2 for stride in levels)
    graph = helper.make_graph(
        nodes,
        "slow",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 5, rows])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
