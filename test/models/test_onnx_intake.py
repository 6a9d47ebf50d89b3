"""ONNX files as exporters write them: what they need besides operators, and what is refused in one line."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import GraphProto, NodeProto, TensorProto, helper
from onnx_graphs import assert_same, by_onnxruntime, converted, model, written
from torch import nn
from torch.nn import functional as F

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.models.sources import load_network, load_source
from multi_dnn_ros.models.trace import trace
from multi_dnn_ros.settings.schema import DnnConfig

ROOT = Path(__file__).resolve().parents[2]
RANDOM = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


class Exported(nn.Module):
    """Sizes of tensors in reshapes, resizes and anchors, which exporters write as chains of operators; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.attention = nn.Linear(8, 8)
        self.layer_norm = nn.LayerNorm(8)
        self.head = nn.Conv2d(8, 6, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.silu(self.norm(self.first(image)))
        up = F.interpolate(F.max_pool2d(x, 2), size=x.shape[2:], mode="nearest")
        x = torch.cat([up, self.second(x)], 1)
        left, right = x.chunk(2, 1)
        batch, channels, height, width = left.shape
        tokens = self.layer_norm(left.flatten(2).permute(0, 2, 1))
        tokens = F.gelu(self.attention(tokens))
        left = tokens.permute(0, 2, 1).reshape(batch, channels, height, width)
        grid = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), 0).float()
        out = self.head(left + right)
        boxes = out[:, :2] + grid
        return torch.cat([boxes, out[:, 2:].sigmoid()], 1).view(batch, 6, -1), F.interpolate(
            out, scale_factor=2.0, mode="bilinear", align_corners=False
        )


def exported(path: Path, opset: int, *, dynamic: bool = False, network: nn.Module | None = None) -> Path:
    torch.manual_seed(0)
    axes = {"image": {0: "batch", 2: "height", 3: "width"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            (network or Exported()).eval(), (torch.zeros(1, 3, 32, 48),), str(path), input_names=["image"],
            opset_version=opset, dynamo=False, dynamic_axes=axes,
        )  # fmt: skip
    return path


def noise(width: int = 48, height: int = 32) -> np.ndarray:
    return RANDOM.random((1, 3, height, width), np.float32)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("opset", [11, 13, 17, 20, 22])
def test_an_export_of_torch_agrees_with_onnxruntime(opset: int, dynamic: bool, tmp_path: Path) -> None:
    if opset > 20:  # newer than the TorchScript exporter supports: the same graph with a later version
        file = exported(tmp_path / "net.onnx", 20, dynamic=dynamic)
        proto = onnx.load(file)
        proto.opset_import[0].version = opset
        proto.ir_version = 10
        onnx.save(proto, file)
    else:
        file = exported(tmp_path / "net.onnx", opset, dynamic=dynamic)
    assert_same(file, noise(), tolerance=1e-4, size=(48, 32))
    image = torch.from_numpy(noise())
    network = converted(file, (48, 32))
    torch.testing.assert_close(trace(network, (image,))(image), tuple(network(image)))
    shapes = [shape for _, shape in prepare(file, (48, 32)).outputs]
    assert shapes == [(1, 6, 384), (1, 6, 32, 48)]
    operators = {node.op_type for node in prepare(file, (48, 32)).model.graph.node}
    assert not {"Shape", "Constant", "ConstantOfShape", "Range", "If"} & operators


def test_modules_have_names_that_a_pt2_file_may_have(tmp_path: Path) -> None:
    """Names with slashes, dots and other characters, two of which differ only in these, and two empty names."""
    names = ["/model.0/act/Relu", "model_0_act_Relu", "a: b", "", "", "/__x__/"]
    values = ["image", *(f"value{k}" for k in range(len(names)))]
    nodes = [
        helper.make_node("Relu", [before], [after], name)
        for before, after, name in zip(values, values[1:], names, strict=False)
    ]
    file = written(tmp_path / "net.onnx", model(nodes, values[-1:], opset=17))
    network = converted(file)
    found = [name for name, module in network.named_children() if isinstance(module, nn.ReLU)]
    plain = ["model_0_act_Relu", "model_0_act_Relu", "a_b", "Relu", "Relu_1", "x"]
    assert found == [f"{name}_{number}" for number, name in enumerate(plain)]
    image = torch.from_numpy(noise(10, 8)) - 0.5
    torch.export.save(torch.export.export(network, (image,)), tmp_path / "net.pt2")
    assert torch.equal(load_network(str(tmp_path / "net.pt2")).module(image), image.relu())


def test_a_network_of_free_size_runs_at_the_size_of_the_parameters(tmp_path: Path) -> None:
    file = exported(tmp_path / "net.onnx", 17, dynamic=True)
    assert_same(file, noise(64, 32), tolerance=1e-4, size=(64, 32))
    config = DnnConfig(
        role="object", model=str(file), decoder="yolo", labels=["a", "b"], input_width=64, input_height=32
    )
    with pytest.raises(ModelError, match=r"\(1, 6, 512\), \(1, 6, 32, 64\), but decoder yolo"):
        load_dnn("x", config)
    with pytest.raises(ModelError, match="input_width and input_height"):
        load_dnn("x", config.model_copy(update={"input_width": 0}))


def head_nodes(boxes: int = 20) -> tuple[list[Any], dict[str, Any]]:
    """image (1, 3, 8, 10) -> rows (1, 6, boxes): centre and size in pixels, two scores."""
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["values"]),
        helper.make_node("Sigmoid", ["values"], ["positive"]),
        helper.make_node("Reshape", ["positive", "rows"], ["head"]),
    ]
    constants = {
        "w": RANDOM.standard_normal((240, 6 * boxes)).astype(np.float32),
        "rows": np.array([1, 6, boxes], np.int64),
    }
    return nodes, constants


def test_the_graph_is_cut_before_suppression_at_the_common_head(tmp_path: Path) -> None:
    nodes, constants = head_nodes()
    nodes += [
        helper.make_node("Transpose", ["head"], ["rowwise"], perm=[0, 2, 1]),
        helper.make_node("Split", ["rowwise"], ["boxes", "scores"], axis=2, split=[4, 2]),
        helper.make_node("Transpose", ["scores"], ["by_class"], perm=[0, 2, 1]),
        helper.make_node("NonMaxSuppression", ["boxes", "by_class", "most", "iou"], ["chosen"], center_point_box=1),
        helper.make_node("Gather", ["boxes", "chosen"], ["out"], axis=1),
    ]
    constants |= {"most": np.array([10], np.int64), "iou": np.array([0.5], np.float32)}
    file = written(tmp_path / "nms.onnx", model(nodes, ["out"], opset=12, constants=constants))
    prepared = prepare(file)
    assert prepared.cut
    assert [shape for _, shape in prepared.outputs] == [(1, 6, 20)]
    source = load_source("x", DnnConfig(role="object", model=str(file)))
    assert source.output_names == ("head",)


def test_the_graph_is_cut_at_boxes_and_scores_where_they_share_no_head(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w1"], ["b"]),
        helper.make_node("Reshape", ["b", "s1"], ["boxes"]),
        helper.make_node("MatMul", ["flat", "w2"], ["c"]),
        helper.make_node("Reshape", ["c", "s2"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"]),
        helper.make_node("Identity", ["chosen"], ["out"]),
    ]
    constants = {
        "w1": RANDOM.standard_normal((240, 80)).astype(np.float32), "s1": np.array([1, 20, 4], np.int64),
        "w2": RANDOM.standard_normal((240, 60)).astype(np.float32), "s2": np.array([1, 3, 20], np.int64),
        "most": np.array([10], np.int64),
    }  # fmt: skip
    kinds = {"out": TensorProto.INT64}
    file = written(tmp_path / "nms.onnx", model(nodes, ["out"], opset=13, constants=constants, output_kinds=kinds))
    source = load_source("x", DnnConfig(role="object", model=str(file)))
    assert (source.output_names, source.outputs) == (("boxes", "scores"), ((1, 20, 4), (1, 3, 20)))


def test_half_precision_channels_last_and_integer_images(tmp_path: Path) -> None:
    """As TensorFlow's exporter writes it: (1, height, width, 3), uint8; weights in float16."""
    nodes = [
        helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT16),
        helper.make_node("Transpose", ["x"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("Cast", ["y"], ["out"], to=TensorProto.FLOAT),
    ]
    weights = {"w": RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float16)}
    proto = model(nodes, ["out"], opset=13, constants=weights, shape=[1, 9, 11, 3], kind=TensorProto.UINT8)
    file = written(tmp_path / "tf.onnx", proto)
    source = load_source("x", DnnConfig(role="object", model=str(file)))  # compared with ONNX Runtime
    assert source.size == (11, 9)
    assert source.outputs == ((1, 4, 5, 6),)
    assert source.preprocess["std"] == pytest.approx((1 / 255,) * 3)
    assert all(
        tensor.dtype == torch.float32 for tensor in source.module.state_dict().values() if tensor.is_floating_point()
    )


def test_the_second_input_of_rt_detr_and_paddle_is_the_size(tmp_path: Path) -> None:
    for name, kind, expected in (
        ("orig_target_sizes", TensorProto.INT64, [10.0, 8.0]), ("im_shape", TensorProto.FLOAT, [8.0, 10.0]),
        ("scale_factor", TensorProto.FLOAT, [1.0, 1.0]),
    ):  # fmt: skip
        nodes = [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Cast", [name], ["sizes"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["sizes", "mean"], ["out"]),
        ]
        proto = model(nodes, ["out"], opset=13)
        proto.graph.input.append(helper.make_tensor_value_info(name, kind, [1, 2]))
        file = written(tmp_path / f"{name}.onnx", proto)
        module = load_source("x", DnnConfig(role="object", model=str(file))).module
        with torch.inference_mode():
            np.testing.assert_allclose(module(torch.ones(1, 3, 8, 10)).numpy(), [expected], rtol=1e-6)


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    nodes, constants = head_nodes()
    path = tmp_path / "net.onnx"
    proto = model(nodes, ["head"], opset=17, constants=constants)
    onnx.save(proto, path, save_as_external_data=True, location="net.bin", size_threshold=100)
    assert (tmp_path / "net.bin").is_file()
    assert_same(path)
    source = load_source("x", DnnConfig(role="object", model=str(path)), onnx=True)
    assert source.outputs == ((1, 6, 20),)


def test_a_branch_in_a_branch_reads_values_of_the_graph(tmp_path: Path) -> None:
    def branch(*nodes: NodeProto) -> GraphProto:
        out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        return helper.make_graph(list(nodes), "branch", [], [out])

    twice = branch(helper.make_node("Add", ["scaled", "scaled"], ["twice"]))
    half = branch(helper.make_node("Mul", ["scaled", "factor"], ["half"]))
    inner = branch(helper.make_node("If", ["large"], ["inner"], then_branch=twice, else_branch=half))
    other = branch(helper.make_node("Neg", ["image"], ["other"]))
    nodes = [
        helper.make_node("Sigmoid", ["image"], ["scaled"]),
        helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        helper.make_node("Greater", ["mean", "one"], ["large"]),
        helper.make_node("If", ["positive"], ["out"], then_branch=inner, else_branch=other),
    ]
    constants = {name: np.float32(value) for name, value in (("zero", 0), ("one", 1), ("factor", 0.5))}
    file = written(tmp_path / "net.onnx", model(nodes, ["out"], opset=17, constants=constants))
    prepared = prepare(file).model
    for level in (-1.0, 0.5, 2.0):
        image = np.full((1, 3, 8, 10), level, np.float32)
        (expected,) = by_onnxruntime(file, image)
        for jobs in (1, 3):
            (found,) = run_stages(make_sessions(prepared, jobs), (image,))
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    """torch's newer exporter writes such functions."""
    function = helper.make_function(
        "own", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    proto = model([helper.make_node("Twice", ["image"], ["out"], domain="own")], ["out"], opset=18)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.append(function)
    assert_same(written(tmp_path / "f.onnx", proto))


def test_outputs_keep_their_order_and_number(tmp_path: Path) -> None:
    """By itself, onnx2torch returns all outputs of a node that writes one of them, and each node's only once."""
    nodes = [helper.make_node("Split", ["image"], ["a", "b", "c"], axis=1), helper.make_node("Relu", ["b"], ["d"])]
    assert_same(written(tmp_path / "s.onnx", model(nodes, ["d", "c", "a", "image"], opset=13)))


def ultralytics(path: Path, **properties: str) -> Path:
    nodes, constants = head_nodes()
    proto = model(nodes, ["head"], opset=19, constants=constants)
    given = {"names": "{0: 'car', 1: 'bus'}", "imgsz": "[8, 10]", "stride": "2", "task": "detect", **properties}
    helper.set_model_props(proto, given)
    return written(path, proto)


@pytest.mark.parametrize(
    ("columns", "classes", "properties", "decoder", "fit"),
    [
        (6, 3, {"head": "RTDETRDecoder"}, "rtdetr_selected", "stretch"),
        (6, 2, {"head": "RTDETRDecoder"}, "rtdetr_selected", "stretch"),
        (6, 3, {"description": "Ultralytics rtdetr-l model"}, "rtdetr_selected", "stretch"),
        (6, 2, {"description": "Ultralytics rtdetr-l model"}, "rtdetr", "stretch"),
        (7, 3, {"description": "Ultralytics rtdetr-l model"}, "rtdetr", "stretch"),
        (6, 3, {"head": "v10Detect"}, "end_to_end", "letterbox"),
    ],
)
def test_the_metadata_tells_the_layouts_of_rt_detr_from_others(
    columns: int, classes: int, properties: dict[str, str], decoder: str, fit: str, tmp_path: Path
) -> None:
    """Since May 2026, RT-DETR of Ultralytics has the shape of YOLOv10, with another meaning of the first 4 columns."""
    row = [0.5, 0.25, 0.2, 0.1, *[0.9] * (columns - 5), 1.0]
    constants = {"row": np.array([[row] * 20], np.float32), "zero": np.array(0, np.float32)}
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0, axes=[1, 2, 3]),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["row", "nothing"], ["rows"]),
    ]
    proto = model(nodes, ["rows"], opset=17, constants=constants)
    names = {number: f"class {number}" for number in range(classes)}
    helper.set_model_props(proto, {"names": str(names), "task": "detect", "stride": "1", **properties})
    file = written(tmp_path / "u.onnx", proto)
    dnn = load_dnn("x", DnnConfig(role="object", model=str(file), score_threshold=0.5))
    assert (type(dnn.decoder).name, dnn.preprocess.fit) == (decoder, fit)
    if decoder == "rtdetr_selected":
        found = dnn.results([dnn.module(dnn.example_inputs()[0])], (100, 200))
        assert found.boxes[0] == pytest.approx([80, 20, 120, 30])
        assert (found.class_ids[0], found.scores[0]) == (1, pytest.approx(0.9))


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"names": "{0: 'car', 2: 'bus'}"}, r"names is .*its numbers are \[0, 2\].*expected 0 to 1"),
        ({"names": "__import__('os')"}, r"metadata names is .*expected a list or names by number"),
        ({"imgsz": "[8]"}, r"imgsz is .*8.*value 2 is missing"),
        ({"stride": "32"}, r"multiples of 32; not 10 x 8"),
        ({"task": "classify"}, "a classifier by its metadata; allowed: detectors"),
    ],
)
def test_wrong_metadata_is_named(properties: dict[str, str], words: str, tmp_path: Path) -> None:
    file = ultralytics(tmp_path / "u.onnx", **properties)
    with pytest.raises(ModelError, match=rf"u\.onnx: .*{words}"):
        load_dnn("x", DnnConfig(role="object", model=str(file), decoder="yolo"), onnx=True)


SIDECARS = {
    "net.yaml": ("labels: [a, b]\ninput_width: 10\nmean: [0.1, 0.2, 0.3]\ncolor: bgr\nresize: letterbox\n", True),
    "net.json": (
        json.dumps({"labels": ["a", "b"], "mean": [0.1, 0.2, 0.3], "color": "bgr", "resize": "letterbox"}),
        True,
    ),
    "infer_cfg.yml": (
        "label_list: [a, b]\nPreprocess:\n- {type: Resize, target_size: [8, 10], keep_ratio: false}\n"
        "- {type: NormalizeImage, mean: [0.1, 0.2, 0.3], std: [1, 1, 1], is_scale: true}\n",
        False,
    ),
    "preprocessor_config.json": (
        json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1], "size": {"height": 8, "width": 10}}),
        False,
    ),
}


@pytest.mark.parametrize("name", SIDECARS)
def test_a_file_beside_the_model_describes_it(name: str, tmp_path: Path) -> None:
    nodes, constants = head_nodes()
    file = written(tmp_path / "net.onnx", model(nodes, ["head"], opset=13, constants=constants))
    text, own = SIDECARS[name]
    (tmp_path / name).write_text(text)
    if name.startswith("preprocessor"):
        (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "a", "1": "b"}}))
    dnn = load_dnn("x", DnnConfig(role="object", model=str(file), decoder="yolo"))
    assert dnn.labels == ("a", "b")
    assert dnn.preprocess.mean == pytest.approx((0.1, 0.2, 0.3))
    assert dnn.preprocess.fit == ("letterbox" if own else "stretch")
    assert dnn.preprocess.bgr is own


def test_a_wrong_file_beside_the_model_is_named(tmp_path: Path) -> None:
    nodes, constants = head_nodes()
    file = written(tmp_path / "net.onnx", model(nodes, ["head"], opset=13, constants=constants))
    for text, words in (
        ("lables: [a]", r"net\.yaml: unknown key 'lables'; allowed: labels,"),
        ("mean: 3", r"net\.yaml: mean is '3': "),
        ("- a", r"net\.yaml beside it holds list; expected keys"),
        ("{", r"net\.yaml beside it cannot be read"),
        ("color: red", "color is 'red': .*'rgb' or 'bgr'"),
        ("labels: &few [a]\nmean: *few", r"net\.yaml beside it cannot be read: aliases are not supported"),
    ):
        (tmp_path / "net.yaml").write_text(text)
        with pytest.raises(ModelError, match=rf"net\.onnx: .*{words}") as caught:
            load_dnn("x", DnnConfig(role="object", model=str(file), decoder="yolo"))
        assert "\n" not in str(caught.value)


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown": (
        lambda: model([helper.make_node("Magic", ["image"], ["a"])], ["a"], opset=13),
        "No Op registered for Magic",
    ),
    "dynamic": (
        lambda: model(
            [helper.make_node("NonZero", ["image"], ["a"])], ["a"], opset=13, output_kinds={"a": TensorProto.INT64}
        ),
        "operator NonZero: the shape of its output depends on the content of the image",
    ),
    "huge": (
        lambda: model(
            [helper.make_node("Expand", ["image", "s"], ["a"])],
            ["a"],
            opset=13,
            constants={"s": np.array([2**40, 1, 1, 1], np.int64)},
        ),
        "at operator Expand its tensors take more than 2 GiB",
    ),
    "grey": (
        lambda: model([helper.make_node("Relu", ["image"], ["a"])], ["a"], opset=13, shape=[1, 1, 8, 8]),
        r"takes inputs of shapes \[\(1, 1, 8, 8\)\] \(0: free\); allowed: one image .* and inputs named orig_target_",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_line_with_file_and_operator(name: str, tmp_path: Path) -> None:
    make, words = REFUSED[name]
    file = written(tmp_path / f"{name}.onnx", make())
    with pytest.raises(ModelError, match=rf"{name}\.onnx: .*{words}") as caught:
        load_dnn("x", DnnConfig(role="object", model=str(file), decoder="yolo", labels=["a"]), onnx=True)
    assert "\n" not in str(caught.value)
