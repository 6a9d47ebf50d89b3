"""The comparison of dynamically quantized networks with ONNX Runtime, whose outputs rounding alone can change."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx_graphs import model, written

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_intake import verification
from multi_dnn_ros.models.onnx_intake.conversion import convert
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.models.onnx_intake.refusal import Refusal
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.schema import DnnConfig


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


def amplify_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change four tenths of the values of the outputs, unless ONNX Runtime's 8-bit values are given."""
    by_network = verification._by_network

    def changed(*given: Any) -> list[np.ndarray]:
        outputs = [np.array(output) for output in by_network(*given)]
        if len(given) == 3:
            for output in outputs:
                output.reshape(-1)[: round(0.4 * output.size)] += 1000.0
        return outputs

    monkeypatch.setattr(verification, "_by_network", changed)


def test_a_network_is_accepted_if_its_parts_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = convolutions(tmp_path / "net.onnx")
    amplify_rounding(monkeypatch)
    with caplog.at_level(logging.WARNING):
        load_source("x", DnnConfig(role="network", model=str(path)))
    assert "on noise each part of the network agrees with ONNX Runtime, but the whole does not: " in caplog.text
    assert "40.0% of its values differ by more than 0.05 of the largest value" in caplog.text


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
    random = np.random.default_rng(0)
    pixels = random.random((1, 3, 8, 10), np.float32)
    near = (pixels * (1 + random.uniform(-1e-5, 1e-5, pixels.shape))).astype(np.float32)
    (once,), (again,) = (verification._by_onnxruntime(path, prepare(path), given) for given in (pixels, near))
    assert (np.abs(once - again) > 0.05 * np.abs(once).max()).mean() > 0.5
    with pytest.raises(Refusal, match="output 'fine out' on noise, computed from ONNX Runtime's 8-bit values: "):
        verified(path, other)


def test_a_wrong_range_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values that a part computes for the next part are compared, although the next part does not read them."""
    path = convolutions(tmp_path / "net.onnx")
    amplify_rounding(monkeypatch)
    by_network = verification._by_network

    def wrong(*given: Any) -> list[np.ndarray]:
        outputs = by_network(*given)
        return [255 - output if output.dtype == np.uint8 and output.ndim else output for output in outputs]

    monkeypatch.setattr(verification, "_by_network", wrong)
    with pytest.raises(ModelError, match="tensor 'layer0 codes' on noise, computed from ONNX Runtime's 8-bit values: "):
        load_source("x", DnnConfig(role="network", model=str(path)))


def test_without_the_parts_the_outputs_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = convolutions(tmp_path / "net.onnx")
    amplify_rounding(monkeypatch)
    by_onnxruntime = verification._by_onnxruntime

    def slow(*given: Any) -> list[np.ndarray]:
        if len(given) > 3:
            raise subprocess.TimeoutExpired("onnxruntime", 300)
        return by_onnxruntime(*given)

    monkeypatch.setattr(verification, "_by_onnxruntime", slow)
    with pytest.raises(ModelError, match=r"output 'layer1 out' on noise: 40\.0% of its values differ"):
        load_source("x", DnnConfig(role="network", model=str(path)))
    assert "net.onnx is not compared with ONNX Runtime part by part: " in caplog.text


def test_fixed_ranges_are_compared_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "scale", "zero"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["out"]),
    ]
    constants = {"scale": np.array(0.01, np.float32), "zero": np.array(0, np.uint8)}
    path = written(tmp_path / "net.onnx", model(nodes, ["out"], opset=13, constants=constants))
    amplify_rounding(monkeypatch)
    with pytest.raises(ModelError, match=r"output 'out' on noise: 40\.0% of its values differ.* allowed: 5%"):
        load_source("x", DnnConfig(role="network", model=str(path)))
