"""The comparison of dynamically quantized networks with ONNX Runtime, whose outputs rounding alone can change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx_graphs import model, written

from multi_dnn_ros.models.onnx_intake import verification
from multi_dnn_ros.models.onnx_intake.conversion import convert
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.models.onnx_intake.refusal import Refusal


@pytest.fixture(autouse=True)
def _no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, so that no file counts as compared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ranges(source: str, name: str) -> NodeProto:
    """A node that quantizes `source` to 8 bits with the range of its values."""
    return helper.make_node("DynamicQuantizeLinear", [source], [f"{name} codes", f"{name} scale", f"{name} zero"])


def convolutions(path: Path, *, change: int = 0) -> Path:
    """Two quantized convolutions as quantize_dynamic writes them. change: added to the weights of the last channel."""
    random = np.random.default_rng(3)
    weights = [random.integers(30, 91, shape) for shape in ((4, 3, 3, 3), (2, 4, 3, 3))]
    weights[1][-1] += change
    constants: dict[str, Any] = {"middle": np.array(60, np.uint8), "step": np.array(0.01, np.float32)}
    nodes = []
    source = "image"
    for index, values in enumerate(weights):
        name = f"layer{index}"
        constants[f"{name} weights"] = values.astype(np.uint8)
        given = [f"{name} codes", f"{name} weights", f"{name} zero", "middle"]
        nodes += [
            ranges(source, name),
            helper.make_node("ConvInteger", given, [f"{name} sums"], pads=[1, 1, 1, 1]),
            helper.make_node("Cast", [f"{name} sums"], [f"{name} float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name} scale", "step"], [f"{name} factor"]),
            helper.make_node("Mul", [f"{name} float", f"{name} factor"], [f"{name} out"]),
        ]
        source = f"{name} out"
    return written(path, model(nodes, [source], opset=13, constants=constants))


def residual(path: Path, *, first: str = "Identity", last: str = "Identity") -> Path:
    """What remains of the image after it is rounded to 8 bits twice, each time in the range of its values.

    The second rounding has steps of about 1e-5, so that changes of the image of one part in a hundred thousand change
    nearly all values of the output. first, last: operators on what each rounding leaves.
    """
    nodes = []
    source = "image"
    for name, operator in (("coarse", first), ("fine", last)):
        nodes += [
            ranges(source, name),
            helper.make_node("DequantizeLinear", [f"{name} codes", f"{name} scale", f"{name} zero"], [f"{name} value"]),
            helper.make_node("Sub", [source, f"{name} value"], [f"{name} rest"]),
            helper.make_node(operator, [f"{name} rest"], [f"{name} out"]),
        ]
        source = f"{name} out"
    return written(path, model(nodes, [source], opset=13))


def verified(path: Path, other: Path) -> None:
    """Compare the conversion of `other` with what ONNX Runtime gives for `path`."""
    prepared = prepare(other)
    verification.verify(path, prepared, convert(prepared.model))


@pytest.mark.parametrize("change", [-20, 20])
def test_other_weights_are_refused(change: int, tmp_path: Path) -> None:
    path, other = convolutions(tmp_path / "net.onnx"), convolutions(tmp_path / "other.onnx", change=change)
    with pytest.raises(Refusal, match="output 'layer1 out' on noise, computed from ONNX Runtime's 8-bit values: "):
        verified(path, other)
    verified(path, path)


@pytest.mark.parametrize("change", [{"first": "Abs"}, {"last": "Abs"}])
def test_a_wrong_operator_is_refused_where_onnxruntime_does_not_agree_with_itself(
    change: dict[str, str], tmp_path: Path
) -> None:
    path, other = residual(tmp_path / "net.onnx"), residual(tmp_path / "other.onnx", **change)
    with pytest.raises(Refusal, match="output 'fine out' on noise, computed from ONNX Runtime's 8-bit values: "):
        verified(path, other)
