"""Quantized networks run in 8 bits on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import load
from onnx_graphs import by_onnxruntime
from torch import nn

from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
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
            source, path, op_types_to_quantize=["Conv", "MatMul"], per_channel=per_channel, reduce_range=True,
            weight_type=quantization.QuantType.QUInt8,  # ONNX Runtime for Python 3.10 has no convolution of signed ones
        )  # fmt: skip
    else:
        name = load(source).graph.input[0].name
        quantization.quantize_static(
            source, path, Images(name), quant_format=quantization.QuantFormat[form], per_channel=per_channel,
            reduce_range=True,
        )  # fmt: skip
    return path


@pytest.mark.parametrize("form", ["QOperator", "QDQ", "dynamic"])
def test_a_quantized_network_runs_in_8_bits_as_the_file_does(form: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.quantization")
    path = quantized(tmp_path / "q.onnx", form, per_channel=True)
    config = DnnConfig(role="network", model=str(path), decoder="end_to_end", labels=["a", "b"])
    dnn = load_dnn("x", config, onnx=True)
    given = image(99)
    (expected,), (found,) = by_onnxruntime(path, given), dnn.module(given)
    step = float(expected.max() - expected.min()) / 255
    assert np.abs(found - expected).max() <= step  # a value between two steps may go to either
    stages = make_sessions(dnn.module.model, jobs=3)
    carried = (given,)
    for stage in stages:
        carried = stage(carried)
    assert len(stages) == 3
    assert np.abs(carried[0] - expected).max() <= step
    integers = {"QOperator": "QLinearConv", "QDQ": "QLinear", "dynamic": "ConvInteger"}
    assert any(name.startswith(integers[form]) for stage in stages for name in stage.operators)


@pytest.mark.parametrize(("form", "operator"), [("QDQ", "QuantizeLinear"), ("QOperator", "QuantizeLinear")])
def test_for_pytorch_a_quantized_network_is_refused(form: str, operator: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime.quantization")
    path = quantized(tmp_path / "q.onnx", form, per_channel=True)
    config = DnnConfig(role="network", model=str(path), decoder="end_to_end", labels=["a", "b"])
    with pytest.raises(ModelError, match=rf"q\.onnx: .*cannot be converted to PyTorch.*{operator}.*on a CPU"):
        load_dnn("x", config)
