"""Operators of quantized networks: converted to float32, with the activations rounded as in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, load, numpy_helper, save
from onnx_graphs import by_onnxruntime, written
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_intake.conversion import convert
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.settings.schema import DnnConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Network(nn.Module):
    """The layers that ONNX Runtime quantizes: convolutions, sums, products, sigmoids, pools, a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.second = nn.Conv2d(8, 8, 3, 1, 1, groups=2, bias=False)
        self.last = nn.Linear(8, 6)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.first(image))
        found = found + nn.functional.leaky_relu(self.second(found))
        found = torch.cat([found * found.sigmoid(), nn.functional.avg_pool2d(found, 1)], 1)[:, :8]
        return self.last(found.flatten(2).transpose(1, 2))


def exported(path: Path) -> Path:
    torch.manual_seed(0)
    torch.onnx.export(Network().eval(), (torch.zeros(1, 3, 16, 24),), str(path), dynamo=False, opset_version=17)
    return path


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((1, 3, 16, 24), np.float32)


class Images:
    def __init__(self, name: str) -> None:
        self.left = [{name: image(seed)} for seed in range(8)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def quantized(path: Path, form: str, per_channel: bool) -> Path:
    """Has 7-bit weights, because without 8-bit dot products ONNX Runtime saturates sums of two products in 16 bits."""
    from onnxruntime import quantization

    source = exported(path.with_name("float.onnx"))
    if form == "dynamic":
        quantization.quantize_dynamic(
            source, path, op_types_to_quantize=["Conv", "MatMul"], per_channel=per_channel, reduce_range=True
        )
    else:
        name = load(source).graph.input[0].name
        quantization.quantize_static(
            source, path, Images(name), quant_format=quantization.QuantFormat[form], per_channel=per_channel,
            reduce_range=True,
        )  # fmt: skip
    return path


def converted(path: Path, given: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        (output,) = pytree.tree_leaves(convert(prepare(path).model)(torch.from_numpy(given)))
    return np.asarray(output.numpy())


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["QOperator", "QDQ", "dynamic"])
def test_a_quantized_network_agrees_with_onnxruntime(form: str, per_channel: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.quantization")
    path = quantized(tmp_path / "q.onnx", form, per_channel)
    operators = {node.op_type for node in load(path).graph.node}
    expected_operators = {"QOperator": "QLinearConv", "QDQ": "QuantizeLinear", "dynamic": "ConvInteger"}
    assert expected_operators[form] in operators
    given = image(99)
    (expected,) = by_onnxruntime(path, given)
    step = float(expected.max() - expected.min()) / 255
    found = converted(path, given)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1.5 * step  # a value between two steps may go to either
    assert np.abs(found - expected).mean() <= 0.1 * step
    dnn = load_dnn("x", DnnConfig(role="network", model=str(path), decoder="end_to_end", labels=["a", "b"]))
    assert dnn.preprocess.width == 24


def qlinear(weights: Any, scale: Any, zero: Any, *, bias: Any = None, opset: int = 10) -> ModelProto:
    """image -> QuantizeLinear -> QLinearConv -> DequantizeLinear."""
    arrays = {
        "xs": np.array(0.01, np.float32), "xz": np.array(3, np.uint8), "w": weights, "ws": scale, "wz": zero,
        "ys": np.array(0.05, np.float32), "yz": np.array(90, np.uint8),
    }  # fmt: skip
    names = ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if bias is not None:
        arrays["b"] = bias
        names.append("b")
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "xs", "xz"], ["q"]),
        helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("DequantizeLinear", ["y", "ys", "yz"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 24])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [10, 13, 21])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_with_zero_points_scales_and_a_bias(per_channel: bool, opset: int, tmp_path: Path) -> None:
    """QLinearConv had scales for each channel before DequantizeLinear had them."""
    random = np.random.default_rng(4)
    weights = random.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    scale = np.array([0.01, 0.02, 0.005, 0.001] if per_channel else 0.01, np.float32)
    zero = np.zeros(4, np.int8) if per_channel else np.array(0, np.int8)
    bias = random.integers(-2000, 2000, 4).astype(np.int32)
    path = written(tmp_path / "q.onnx", qlinear(weights, scale, zero, bias=bias, opset=opset))
    (expected,) = by_onnxruntime(path, image())
    gap = np.abs(converted(path, image()) - expected)
    assert gap.max() <= 0.0501  # one step of 0.05
    assert (gap > 0.01).mean() < 0.01


def changed(path: Path, proto: ModelProto, change: Any) -> Path:
    change(proto)
    save(proto, path)
    return path


def _unknown(proto: ModelProto) -> None:
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.node.insert(1, helper.make_node("QLinearWhere", ["q", "q"], ["other"], "w1", domain="com.microsoft"))


def _computed_weights(proto: ModelProto) -> None:
    proto.graph.node[1].input[3] = "q"


def _scales(proto: ModelProto) -> None:
    (scale,) = (tensor for tensor in proto.graph.initializer if tensor.name == "ws")
    scale.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "ws"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            _unknown,
            r"com\.microsoft\.QLinearWhere \(node 'w1'\) is a quantized operator .*QuantFormat\.QDQ",
        ),
        (_computed_weights, r"QLinearConv: input 3 is computed by the network; allowed: constant weights"),
        (_scales, r"QLinearConv: 3 scales do not fit the shape \(4, 3, 3, 3\)"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_line(change: Any, words: str, tmp_path: Path) -> None:
    proto = qlinear(np.ones((4, 3, 3, 3), np.int8), np.array(0.01, np.float32), np.array(0, np.int8))
    path = changed(tmp_path / "q.onnx", proto, change)
    with pytest.raises(ModelError, match=words) as caught:
        load_dnn("x", DnnConfig(role="network", model=str(path), decoder="lane"))
    assert "\n" not in str(caught.value)
