"""Detections and LabelInfo have the same class ids, for every model source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node_bench import Bench, image
from vision_msgs.msg import Detection2DArray, LabelInfo

from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.ros.result_messages import LATCHED, class_names
from multi_dnn_ros.serving.build import build as build_for_real
from multi_dnn_ros.settings.schema import DnnConfig

LABELS = ["car", "truck"]


def label_infos(bench: Bench, dnn: str = "object") -> list[Any]:
    """The message that a new subscriber receives on the DNN's label_info."""
    heard: list[Any] = []
    bench.peer.create_subscription(LabelInfo, f"/multi_dnn/{dnn}/label_info", heard.append, LATCHED)
    return heard


def start(bench: Bench, parameters: dict | None = None, **arguments: Any) -> None:
    bench.node(parameters, **arguments)
    assert bench.change("configure")
    assert bench.change("activate")


def exported(folder: Path) -> Path:
    dnn = load_dnn("object", DnnConfig(role="object", model="builtin:object"))
    file = folder / "object.pt2"
    torch.export.save(torch.export.export(dnn.module, dnn.example_inputs()), file)
    return file


def onnx_file(folder: Path) -> Path:
    """A head of 6 rows (a box and two classes) for each of 8 x 8 anchor points: a convolution and a flatten."""
    from onnx import TensorProto, helper, numpy_helper, save

    random = np.random.default_rng(0)
    weights = random.normal(0, 0.05, (6, 3, 4, 4)).astype(np.float32)
    bias = np.array([16, 16, 8, 8, 0.5, 0.5], np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "weights", "bias"], ["cells"], strides=[4, 4], kernel_shape=[4, 4]),
            helper.make_node("Reshape", ["cells", "shape"], ["out"]),
        ],
        "head",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 6, 64])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(bias, "bias"),
            numpy_helper.from_array(np.array([1, 6, 64]), "shape"),
        ],
    )
    file = folder / "head.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
    return file


@pytest.mark.parametrize(
    "source",
    ["builtin", "decomposed", "onnx", *(pytest.param(name, marks=pytest.mark.long) for name in ("torchvision", "pt2"))],
)
def test_class_ids_of_detections_are_those_of_the_label_info(bench: Bench, tmp_path: Path, source: str) -> None:
    files = {"decoder": "yolo", "labels": LABELS}
    settings: dict[str, Any] = {
        "builtin": lambda: {"model": "builtin:object"},
        "decomposed": lambda: {"model": "builtin:object_small"},
        "torchvision": lambda: {"model": "torchvision:ssdlite320_mobilenet_v3_large", "weights": "random"},
        "pt2": lambda: {"model": str(exported(tmp_path)), **files},
        "onnx": lambda: {"model": str(onnx_file(tmp_path)), **files},
    }[source]()
    values = {f"dnn.object.{name}": value for name, value in {"score_threshold": 1e-4, **settings}.items()}
    start(bench, {"device": "cpu", "dnn.object.backend": "eager", "dnn.object.jobs": 1, **values}, build=build_for_real)
    found = bench.listen("/multi_dnn/front/object/detections", Detection2DArray)
    infos = label_infos(bench)
    bench.camera().publish(image(size=(64, 48)))
    bench.until(lambda: found and infos, "detections and label_info")
    names = class_names(infos[0])
    ids = {detection.results[0].hypothesis.class_id for detection in found[0].detections}
    assert ids, "no detection at threshold 0.0001"
    assert ids <= names.keys()
    if source == "builtin":
        _zero_selects_the_threshold_of_the_model(bench, infos)
    if source == "torchvision":
        assert (names["1"], names["3"], len(names)) == ("person", "car", 91)
    else:
        assert names == {"0": "car", "1": "truck"}


def _zero_selects_the_threshold_of_the_model(bench: Bench, infos: list[Any]) -> None:
    """0 is the default of the parameter."""
    assert bench.set("dnn.object.score_threshold", 0.0)[0]
    assert bench.set("dnn.object.score_threshold", 0.125)[0]
    assert bench.set("dnn.object.score_threshold", 0.0)[0]
    bench.until(lambda: len(infos) == 4, "label_info again")
    default = np.float32(SCORE_THRESHOLDS["object"])
    assert [message.threshold for message in infos[1:]] == [default, 0.125, default]


def test_the_threshold_of_the_label_info_follows_the_parameter(bench: Bench) -> None:
    start(bench, {"dnn.object.score_threshold": 0.25})
    heard = label_infos(bench)
    bench.until(lambda: len(heard) == 1, "label_info")
    assert heard[0].threshold == 0.25
    assert bench.set("dnn.object.iou_threshold", 0.75)[0]  # which is not part of label_info
    assert bench.set("dnn.object.score_threshold", 0.5)[0]
    bench.until(lambda: len(heard) == 2, "label_info again")
    assert heard[1].threshold == 0.5
    assert heard[1].class_map == heard[0].class_map
    late = label_infos(bench)
    bench.until(lambda: late, "what is kept for late subscribers")
    assert [message.threshold for message in late] == [0.5]


def test_a_threshold_changed_while_inactive_is_published_on_activation(bench: Bench) -> None:
    start(bench)
    heard = label_infos(bench)
    bench.until(lambda: heard, "label_info")
    assert bench.change("deactivate")
    assert bench.set("dnn.object.score_threshold", 0.75)[0]
    assert bench.change("activate")
    bench.until(lambda: heard[-1].threshold == 0.75, "the new threshold")
