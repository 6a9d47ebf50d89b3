"""How fast data is copied between a GPU and the host's memory or other GPUs, and 8-bit integers are multiplied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.profiling.limits import fastest_s

_MEBIBYTES = 256
_SIDE, _OPSET = 1024, 17


@dataclass(frozen=True)
class Link:
    """Link from GPU `source` to GPU `target`. peer_access: whether `source` can access the memory of `target` directly.
    bytes_per_s: rate of a copy; None: not enough memory to measure it.
    """

    source: str
    target: str
    peer_access: bool
    bytes_per_s: float | None


def measure_host_copies(device: torch.device) -> tuple[float, float] | None:
    """Bytes per second of a large copy from page-locked host memory to a GPU, and back. None: out of memory."""
    to_gpu, to_host = _copy_rate(None, device, device), _copy_rate(device, None, device)
    return None if to_gpu is None or to_host is None else (to_gpu, to_host)


def measure_link(source: int, target: int) -> Link:
    """Measure the link from GPU `source` to GPU `target`, which are PyTorch's indices."""
    devices = torch.device("cuda", source), torch.device("cuda", target)
    rate = _copy_rate(*devices, devices[0])  # a copy between GPUs runs on the source's stream
    return Link(str(devices[0]), str(devices[1]), torch.cuda.can_device_access_peer(source, target), rate)


def _copy_rate(source: torch.device | None, target: torch.device | None, device: torch.device) -> float | None:
    """Bytes per second on a stream of `device`; None for a device: page-locked host memory. None: out of memory."""
    try:
        ours, theirs = (
            torch.empty(_MEBIBYTES << 20, dtype=torch.uint8, device=each, pin_memory=each is None)
            for each in (source, target)
        )
        with torch.cuda.device(device):
            return ours.nbytes / fastest_s(lambda: theirs.copy_(ours, non_blocking=True), device)
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise


def measure_int8_ops_per_s(side: int = _SIDE) -> float:
    """Operations per second of a product of `side` x `side` matrices by ONNX Runtime, which is the backend for int8:
    unsigned times constant signed 8-bit integers, with as many threads as PyTorch has.
    """
    random = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["product"])],
        "int8",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [side, side])],
        [helper.make_tensor_value_info("product", TensorProto.INT32, [side, side])],
        [numpy_helper.from_array(random.integers(-128, 128, (side, side), dtype=np.int8), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = {"a": random.integers(0, 256, (side, side), dtype=np.uint8)}
    return float(2.0 * side**3 / fastest_s(lambda: session.run(None, inputs), torch.device("cpu")))
