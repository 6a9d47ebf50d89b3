"""How fast the CPU multiplies 8-bit integers with ONNX Runtime, which is the backend for int8."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from multi_dnn_ros.planning.clock import HostClock
from multi_dnn_ros.planning.device import fastest_s

_SIDE = 1024
_OPSET = 17


def measure_int8_ops_per_s(side: int = _SIDE) -> float:
    """Operations per second of a product of `side` x `side` matrices: unsigned times constant signed 8-bit integers.

    It runs with as many threads as PyTorch has. A multiplication and an addition count as two operations, as for other
    precisions.
    """
    random = np.random.default_rng(0)
    weights = random.integers(-128, 128, (side, side), dtype=np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["product"])],
        "int8",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [side, side])],
        [helper.make_tensor_value_info("product", TensorProto.INT32, [side, side])],
        [numpy_helper.from_array(weights, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = {"a": random.integers(0, 256, (side, side), dtype=np.uint8)}
    return 2.0 * side**3 / fastest_s(lambda: session.run(None, inputs), HostClock())
