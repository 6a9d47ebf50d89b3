"""Maps of an ONNX file become logits with channels first, whatever the exporter wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import NodeProto, TensorProto, helper
from onnx_graphs import assert_same, by_onnxruntime, model, written

from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.results import Mask

SIZE = (40, 32)  # width, height
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def head(classes: int, after: list[NodeProto], *, stride: int = 4, name: str = "x") -> tuple[list[NodeProto], dict]:
    """A convolution from `name` to `map`, and the nodes after it."""
    weight = RANDOM.normal(0, 3, (classes, 3, stride, stride)).astype(np.float32)
    return [helper.make_node("Conv", [name, "w"], ["map"], strides=[stride, stride]), *after], {"w": weight}


def operators(path: Path) -> list[str]:
    return [node.op_type for node in prepare(path).model.graph.node]


def channels_last(path: Path, opset: int, *, softmax: bool) -> Path:
    """As TensorFlow's exporter writes it: channels last outside, first inside, and a softmax over the last axis."""
    after = [helper.make_node("Transpose", ["map"], ["last"], perm=[0, 2, 3, 1])]
    if softmax:
        after.append(helper.make_node("Softmax", ["last"], ["out"], axis=3 if opset < 13 else -1))
    nodes, constants = head(4, after)
    nodes.insert(0, helper.make_node("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2]))
    proto = model(nodes, ["out" if softmax else "last"], opset=opset, constants=constants, shape=(1, 32, 40, 3))
    return written(path, proto)


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize("softmax", [False, True])
def test_channels_last_segmentation_finds_the_classes_that_onnx_runtime_finds(
    softmax: bool, opset: int, tmp_path: Path
) -> None:
    path = channels_last(tmp_path / "net.onnx", opset, softmax=softmax)
    prepared = prepare(path)
    assert [shape for _, shape in prepared.outputs] == [(1, 4, 8, 10)]
    assert "Softmax" not in operators(path)
    config = DnnConfig(role="network", model=str(path), decoder="segmentation", labels=list("abcd"))
    dnn = load_dnn("seg", config)  # compares it with ONNX Runtime, too
    pixels = RANDOM.integers(0, 256, (32, 40, 3), np.uint8)
    inputs = dnn.inputs(torch.from_numpy(pixels))
    with torch.inference_mode():
        found = dnn.results([dnn.module(*inputs)], (32, 40))
    assert isinstance(found, Mask)
    (expected,) = by_onnxruntime(path, inputs[0].permute(0, 2, 3, 1).numpy())
    np.testing.assert_array_equal(found.class_ids, expected[0].argmax(2))


def test_a_threshold_is_compared_with_the_probability_of_the_file(tmp_path: Path) -> None:
    path = channels_last(tmp_path / "net.onnx", 13, softmax=True)
    config = DnnConfig(
        role="network", model=str(path), decoder="segmentation", labels=list("abcd"), score_threshold=0.9
    )
    dnn = load_dnn("seg", config)
    inputs = dnn.inputs(torch.from_numpy(RANDOM.integers(0, 256, (32, 40, 3), np.uint8)))
    with torch.inference_mode():
        found = dnn.results([dnn.module(*inputs)], (32, 40))
    (expected,) = by_onnxruntime(path, inputs[0].permute(0, 2, 3, 1).numpy())
    sure = expected[0].max(2) >= 0.9
    assert sure.any()
    np.testing.assert_array_equal(found.class_ids != 255, sure)


@pytest.mark.parametrize(
    ("classes", "node", "opset"),
    [
        (2, helper.make_node("Sigmoid", ["map"], ["out"]), 17),  # classes that do not exclude each other
        (4, helper.make_node("Softmax", ["map"], ["out"], axis=1), 11),  # over classes and positions together
        (4, helper.make_node("Softmax", ["map"], ["out"], axis=3), 17),  # over the columns
        (4, helper.make_node("Relu", ["map"], ["out"]), 17),
    ],
)
def test_other_activations_stay(classes: int, node: NodeProto, opset: int, tmp_path: Path) -> None:
    nodes, constants = head(classes, [node], name="image")
    path = written(tmp_path / "net.onnx", model(nodes, ["out"], opset=opset, constants=constants, shape=(1, 3, 32, 40)))
    assert operators(path).count(node.op_type) == 1


@pytest.mark.parametrize("half", [False, True])  # converters to float16 may leave inputs and outputs float32
@pytest.mark.parametrize(("operator", "classes"), [("Softmax", 4), ("Sigmoid", 1)])
def test_probabilities_of_classes_become_logits(operator: str, classes: int, half: bool, tmp_path: Path) -> None:
    options = {"axis": 1} if operator == "Softmax" else {}
    nodes, constants = head(classes, [helper.make_node(operator, ["map"], ["last"], **options)])
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    nodes.insert(0, helper.make_node("Cast", ["image"], ["x"], to=kind))
    nodes.append(helper.make_node("Cast", ["last"], ["out"], to=TensorProto.FLOAT))
    constants = {name: value.astype(np.float16 if half else np.float32) for name, value in constants.items()}
    path = written(tmp_path / "net.onnx", model(nodes, ["out"], opset=13, constants=constants, shape=(1, 3, 32, 40)))
    assert operator not in operators(path)
    source = load_source("x", DnnConfig(role="network", model=str(path)))  # compares it with ONNX Runtime
    assert (source.output_names, source.outputs) == (("out",), ((1, classes, 8, 10),))


def test_a_map_that_is_transposed_after_its_softmax_stays_transposed(tmp_path: Path) -> None:
    """With a square input, rows and columns fit either way."""
    after = [
        helper.make_node("Softmax", ["map"], ["upright"], axis=1),
        helper.make_node("Transpose", ["upright"], ["out"], perm=[0, 1, 3, 2]),
    ]
    nodes, constants = head(4, after, name="image")
    path = written(tmp_path / "net.onnx", model(nodes, ["out"], opset=13, constants=constants, shape=(1, 3, 32, 32)))
    assert_same(path, RANDOM.random((1, 3, 32, 32), np.float32))
