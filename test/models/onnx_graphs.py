"""Small ONNX graphs made by the tests, and their outputs by ONNX Runtime and by the converted network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.onnx_intake.conversion import convert
from multi_dnn_ros.models.onnx_intake.preparation import prepare

OPSETS = range(11, 23)


def model(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    *,
    opset: int,
    constants: Mapping[str, Any] | None = None,
    shape: Sequence[Any] = (1, 3, 8, 10),
    kind: int = TensorProto.FLOAT,
    output_kinds: Mapping[str, int] | None = None,
) -> ModelProto:
    """A graph of one input, `image`. constants: arrays by name. output_kinds: types of outputs other than float32."""
    kinds = output_kinds or {}
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("image", kind, list(shape))],
        [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def written(path: Path, proto: ModelProto) -> Path:
    save(proto, path)
    return path


def converted(path: Path, size: tuple[int, int] = (0, 0)) -> torch.nn.Module:
    """The PyTorch network of an ONNX file, not compared with ONNX Runtime. size: (width, height) of a free input."""
    return convert(prepare(path, size).model)


def by_onnxruntime(path: Path | bytes, image: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        path if isinstance(path, bytes) else str(path), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: image})


def assert_same(
    path: Path, image: np.ndarray | None = None, *, tolerance: float = 1e-5, size: tuple[int, int] = (0, 0)
) -> torch.nn.Module:
    """Check that the prepared and the converted network agree with the file; returns the converted one."""
    if image is None:
        image = np.random.default_rng(0).standard_normal((1, 3, 8, 10)).astype(np.float32)
    network = converted(path, size)
    with torch.inference_mode():
        outputs = pytree.tree_leaves(network(torch.from_numpy(image)))
    expected = by_onnxruntime(path, image)
    prepared = by_onnxruntime(prepare(path, size).model.SerializeToString(), image)
    assert len(outputs) == len(expected)
    for own, served, reference in zip(outputs, prepared, expected, strict=True):
        np.testing.assert_allclose(served, reference, rtol=tolerance, atol=tolerance)
        assert tuple(own.shape) == reference.shape
        np.testing.assert_allclose(
            own.to(torch.float64).numpy(), reference.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    return network
