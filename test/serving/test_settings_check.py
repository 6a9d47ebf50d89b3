"""All problems of a configuration are reported at once, before any DNN is loaded."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save
from torch import nn

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.serving.settings_check import check_settings
from multi_dnn_ros.settings.flat_parameters import read_parameters, to_config

SSD = "ssdlite320_mobilenet_v3_large"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def problems(parameters: dict[str, Any], **of_dnn: Any) -> list[str]:
    """Problems of a DNN `x` with these parameters `dnn.x.*`, next to a valid DNN `object`."""
    flat = {"device": "cpu", "dnns": ["object", "x"], "dnn.x.role": "object", **parameters}
    return list(
        check_settings(to_config({**flat, **{f"dnn.x.{name}": value for name, value in of_dnn.items()}})).problems
    )


def head(folder: Path, rows: int = 6, size: tuple[Any, Any] = (32, 32), operator: str = "", outside: str = "") -> str:
    """An ONNX file whose output is (1, rows, 8, 8). operator: a further operator. outside: file with its weights."""
    random = np.random.default_rng(0)
    weights = numpy_helper.from_array(random.normal(0, 0.05, (rows, 3, 4, 4)).astype(np.float32), "weights")
    if outside:
        weights.data_location = TensorProto.EXTERNAL
        for key, value in {"location": outside, "offset": "0", "length": str(len(weights.raw_data))}.items():
            weights.external_data.add(key=key, value=value)
        weights.ClearField("raw_data")
    cells = (side // 4 if isinstance(side, int) else "cells" for side in size)
    nodes = [helper.make_node("Conv", ["image", "weights"], ["out"], strides=[4, 4], kernel_shape=[4, 4])]
    if operator:
        nodes.append(helper.make_node(operator, ["out"], ["more"]))
    graph = helper.make_graph(
        nodes, "head",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, *size])],
        [helper.make_tensor_value_info("more" if operator else "out", TensorProto.FLOAT, [1, rows, *cells])],
        [weights],
    )  # fmt: skip
    file = folder / "head.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
    return str(file)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 7, 4, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layer(image).flatten(2)


@functools.cache
def saved_program() -> bytes:
    file = io.BytesIO()
    torch.export.save(torch.export.export(Cells().eval(), (torch.zeros(1, 3, 32, 32),)), file)
    return file.getvalue()


def exported(folder: Path) -> str:
    """A .pt2 file whose output is (1, 7, 64): a box and three classes."""
    return written(folder, "cells.pt2", saved_program())


@functools.cache
def saved_weights() -> bytes:
    state = torchvision.models.get_model(SSD, weights=None, weights_backbone=None, num_classes=3).state_dict()
    return save({name: value.contiguous() for name, value in state.items()})


def weights(folder: Path) -> str:
    return written(folder, "weights.safetensors", saved_weights())


def written(folder: Path, name: str, content: bytes | str) -> str:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


#: Its outline takes a third of the time of a detector's.
LRASPP = {"model": "torchvision:lraspp_mobilenet_v3_large", "role": "lane", "keep": ["car"]}
YOLO = {"decoder": "yolo", "labels": ["a", "b"]}
#: What a user may get wrong: (folder of the test) -> parameters, and words of the message.
MISTAKES: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "unknown builtin": (lambda at: {"model": "builtin:sofa"}, "dnn.x.model is 'builtin:sofa'; allowed: builtin:lane"),
    "unknown suffix": (lambda at: {"model": "net.pkl"}, "dnn.x.model is 'net.pkl'; allowed"),
    "missing model": (lambda at: {"model": "net.onnx", **YOLO}, "dnn.x.model is 'net.onnx': there is no such file"),
    "broken onnx": (
        lambda at: {"model": written(at, "a.onnx", b"\xff" * 99), **YOLO},
        "a.onnx: cannot be read as ONNX",
    ),
    "broken pt2": (lambda at: {"model": written(at, "a.pt2", b"PK\3\4" + bytes(64)), **YOLO}, "a.pt2: cannot be read"),
    "broken artifact": (
        lambda at: {"model": written(at, "a.safetensors", b"\xff" * 64)},
        "a.safetensors: cannot be read",
    ),
    "plain weights": (
        lambda at: {"model": weights(at)},
        "a plain file of weights; expected one of multi-dnn decompose",
    ),
    "operator": (
        lambda at: {"model": head(at, operator="Magic"), **YOLO},
        "No Op registered for Magic",
    ),
    "external data": (
        lambda at: {"model": head(at, outside="w.bin"), **YOLO},
        "weights are in {at}/w.bin, and there is no",
    ),
    "unknown builder": (lambda at: {"model": "torchvision:yolov9"}, "'torchvision:yolov9'; allowed builders: fcos"),
    "two stages": (
        lambda at: {"model": "torchvision:fasterrcnn_resnet50_fpn", "weights": "random"},
        "a two-stage detector",
    ),
    "weights name": (
        lambda at: {**LRASPP, "weights": "COCO_V9"},
        "dnn.x.weights is 'COCO_V9'; allowed: COCO_WITH_VOC_LABELS_V1",
    ),
    "no weights": (lambda at: LRASPP, "dnn.x.weights is 'default'; allowed: COCO_WITH_VOC_LABELS_V1, random"),
    "missing weights": (
        lambda at: {**LRASPP, "weights": "w.pth"},
        "weights is 'w.pth': there is no",
    ),
    "broken weights": (
        lambda at: {**LRASPP, "weights": written(at, "w.safetensors", b"\xff" * 64)},
        "w.safetensors: cannot be read as weights",
    ),
    "weights of another class count": (
        lambda at: {"model": f"torchvision:{SSD}", "weights": weights(at)},
        "weights.safetensors does not fit SSD",
    ),
    "weights of the model": (
        lambda at: {"model": "builtin:object", "weights": "random"},
        "allowed with builtin:object: default",
    ),
    "num_classes of a builtin": (
        lambda at: {"model": "builtin:object", "num_classes": 7},
        "num_classes is 7, but builtin:object has 2",
    ),
    "num_classes of a file": (lambda at: {"model": exported(at), **YOLO, "num_classes": 7}, "num_classes is 7, but "),
    "labels of a builtin": (
        lambda at: {"model": "builtin:object", "labels": ["a"]},
        "labels has 1 names, but builtin:object has 2",
    ),
    "labels of a builder": (
        lambda at: {"model": f"torchvision:{SSD}", "weights": "random", "num_classes": 3, "labels": ["a", "b"]},
        f"dnn.x.labels has 2 names, but torchvision:{SSD} has 3 classes",
    ),
    "labels of an onnx": (
        lambda at: {"model": head(at, 9), "decoder": "grid", "labels": ["a"]},
        "(1, 9, 8, 8), but decoder grid",
    ),
    "labels of a pt2": (
        lambda at: {"model": exported(at), **YOLO},
        "(1, 7, 64), but decoder yolo",
    ),
    "no labels of lane classes": (
        lambda at: {
            "model": "torchvision:lraspp_mobilenet_v3_large",
            "weights": "random",
            "role": "lane",
            "num_classes": 5,
        },
        "dnn.x.labels is []; torchvision:lraspp_mobilenet_v3_large needs a name for each of its 5 classes",
    ),
    "no labels": (lambda at: {"model": exported(at), "decoder": "yolo"}, "dnn.x.labels is []"),
    "missing labels": (
        lambda at: {"model": "builtin:object", "labels": ["names.txt"]},
        "labels is 'names.txt': there is no such",
    ),
    "labels file": (
        lambda at: {"model": "builtin:object", "labels": [written(at, "n.txt", b"\xff\xfe")]},
        "n.txt': not a text file",
    ),
    "empty labels file": (
        lambda at: {"model": exported(at), "decoder": "yolo", "labels": [written(at, "n.txt", "\n")]},
        "labels has 0 names; allowed: 1 to",
    ),
    "blank line in a labels file": (
        lambda at: {"model": "builtin:object", "labels": [written(at, "n.txt", "car\n\ntruck\n\n")]},
        "n.txt': line 2 is empty; each class needs a name",
    ),
    "keep": (
        lambda at: {"model": "builtin:object", "keep": ["cat"]},
        "dnn.x.keep = ['cat']: no class 'cat'; allowed: car, truck",
    ),
    "keep of lanes": (
        lambda at: {"model": "torchvision:lraspp_mobilenet_v3_large", "weights": "random", "role": "lane"},
        "dnn.x.keep = []: name the lane class, or classes, among the 21",
    ),
    "keep of all": (
        lambda at: {"model": head(at, 2), "decoder": "lane", "role": "lane", "labels": ["a", "b"], "keep": ["a", "b"]},
        "names all 2 classes as lane; at least one must be background",
    ),
    "no decoder": (lambda at: {"model": exported(at), "labels": ["a"]}, "dnn.x.decoder is 'auto', but "),
    "decoder": (
        lambda at: {"model": "builtin:object", "decoder": "torchvision"},
        "decoder is 'torchvision'; allowed with",
    ),
    "decoder of a head": (lambda at: {"model": head(at, 7), **YOLO}, "(1, 7, 8, 8), but decoder yolo"),
    "role": (
        lambda at: {"model": "builtin:object", "role": "lane"},
        "role is 'lane', but builtin:object is decoded as",
    ),
    "size": (lambda at: {"model": exported(at), **YOLO, "input_width": 64}, "ask for 64 x 32; allowed with"),
    "no size": (
        lambda at: {"model": head(at, 7, ("h", "w")), "decoder": "grid", "labels": ["a", "b"]},
        "both must be given",
    ),
    "mean": (lambda at: {"model": "builtin:object", "mean": [1.0]}, "dnn.x.mean and std: mean = [1.0]"),
    "std": (lambda at: {"model": "builtin:object", "std": [1.0, 0.0, 1.0]}, "must be finite, std above 0"),
    "camera": (
        lambda at: {"model": "builtin:object", "cameras": ["rear"]},
        "dnn.x.cameras names 'rear'; allowed: front",
    ),
    "backend": (
        lambda at: {"model": "builtin:object", "backend": "cuda_graph"},
        "dnn.x.backend is 'cuda_graph', but the device is cpu",
    ),
    "precision": (
        lambda at: {"model": "builtin:object", "precision": "fp16"},
        "dnn.x.precision is 'fp16'; allowed with backend onnxruntime on cpu: auto, fp32",
    ),
    "sms": (lambda at: {"model": "builtin:object", "sms": 8}, "dnn.x.sms is 8; only an NVIDIA GPU can be partitioned"),
}


def _refuse(*arguments: object, **options: object) -> NoReturn:
    raise ModelError("preparing begins")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_before_a_dnn_is_prepared(
    tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, words = MISTAKES[mistake]
    values = settings(tmp_path)
    monkeypatch.setattr("multi_dnn_ros.serving.build.choose_backend", _refuse)
    (problem,) = problems({}, **values)
    assert words.format(at=tmp_path) in problem
    flat = {"device": "cpu", "dnns": ["x"], "dnn.x.role": "object"}
    with pytest.raises(ConfigError) as error:
        build(to_config({**flat, **{f"dnn.x.{name}": value for name, value in values.items()}}))
    assert str(error.value) == problem


@without_gpu
def test_the_device_and_the_predictor(tmp_path: Path) -> None:
    found = problems(
        {"device": "cuda:1", "predictor": written(tmp_path, "p.json", "{")}, precision="fp16", model="builtin:object"
    )
    assert len(found) == 2  # precisions cannot be checked without a device
    assert "parameter device is 'cuda:1', but PyTorch sees 0 GPUs" in found[0]
    assert "p.json'; expected a file of `multi-dnn profile learn`" in found[1]


def test_all_mistakes_of_all_dnns_are_reported_together(tmp_path: Path) -> None:
    found = problems(
        {"dnn.object.model": "nothing.onnx", "dnn.object.precision": "fp16"},
        model="builtin:object", labels=["a"], keep=["b"], mean=[1.0], cameras=["rear", "left"], decoder="grid",
        role="lane",
    )  # fmt: skip
    assert len(found) == 7
    for words in ("nothing.onnx", "object.precision", "'rear'", "'left'", "labels has 1", "mean and std", "x.role"):
        assert sum(words in line for line in found) == 1, words


def test_loading_errors_of_all_dnns_are_reported_before_one_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The networks fail on an image, although their files are valid."""
    monkeypatch.setattr("multi_dnn_ros.serving.build.make_task", lambda *arguments: pytest.fail("a DNN was prepared"))
    for number in (1, 2):
        reshape = helper.make_node("Reshape", ["image", "shape"], ["out"])
        graph = helper.make_graph(
            [reshape], "g",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array([1, 6, 33]), "shape")],
        )  # fmt: skip
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
            tmp_path / f"{number}.onnx",
        )
    flat: dict[str, Any] = {"device": "cpu", "dnns": ["object", "a", "b"]}
    for name, number in (("a", 1), ("b", 2)):
        flat |= {f"dnn.{name}.role": "object", f"dnn.{name}.model": str(tmp_path / f"{number}.onnx")}
        flat |= {f"dnn.{name}.{key}": value for key, value in YOLO.items()}
    with pytest.raises(ValueError, match=r"(?s)dnn\.a: .*1\.onnx fails on an image of 8 x 8.*dnn\.b: .*2\.onnx fails"):
        build(to_config(flat))


def test_a_file_of_names_may_begin_with_a_byte_order_mark_and_end_with_blank_lines(tmp_path: Path) -> None:
    names = written(tmp_path, "names.txt", "\ufeffcar\r\n truck\r\n\r\n")
    assert problems({}, model="builtin:object", labels=[names], keep=["car", "truck"]) == []


def test_a_valid_configuration_has_no_problems(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    assert (
        problems({}, model=exported(tmp_path), decoder="yolo", labels=[str(tmp_path / "names.txt")], num_classes=3)
        == []
    )
    assert problems({}, model=head(tmp_path, 7, ("h", "w")), decoder="grid", labels=["a", "b"], input_width=64,
                    input_height=32) == []  # fmt: skip
    name = LRASPP["model"].partition(":")[2]
    state = torchvision.models.get_model(name, weights=None, weights_backbone=None).state_dict()
    for name, old in (("new.pth", False), ("old.pth", True)):
        torch.save({"state_dict": state}, tmp_path / name, _use_new_zipfile_serialization=not old)
        assert problems({}, **LRASPP, weights=str(tmp_path / name)) == []


def test_values_without_effect_are_warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = {
        "device": "cpu", "dnns": ["object"], "dnn.object.max_batch": 4, "cameras": ["front", "rear"],
        "camera.rear.rate_hz": 5.0, "dnn.object.cameras": ["front"],
    }  # fmt: skip
    assert [line.split()[1] for line in check_settings(to_config(flat)).warnings] == [
        "camera.front.rate_hz",
        "dnn.object.max_batch",
    ]
    monkeypatch.setattr("multi_dnn_ros.serving.build.choose_backend", _refuse)
    with caplog.at_level("WARNING"), pytest.raises(ModelError, match="preparing begins"):
        build(to_config({"device": "cpu", "dnns": ["object"], "dnn.object.batch_delay_ms": 2.0}))
    assert "parameter dnn.object.batch_delay_ms is 2, but max_batch is 1" in caplog.text
    assert check_settings(to_config({"device": "cpu", "camera.front.rate_hz": 5.0})).warnings == ()


def test_branches_without_effect_are_a_warning() -> None:
    flat = {"device": "cpu", "dnns": ["object", "lane"], "dnn.object.branches": 4}
    (warning,) = check_settings(to_config(flat)).warnings
    assert warning == (
        "parameter dnn.object.branches is 4 and has no effect with backend onnxruntime on cpu: branches run at the "
        "same time on a GPU with backend cuda_graph or inductor"
    )
    (problem,) = read_parameters({**flat, "dnn.object.branches": 9}).problems
    assert "dnn.object.branches is 9; allowed: int, 1 to 8" in problem


def test_execution_providers_must_fit_device_precision_and_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.backends.registry.has_int8_products", lambda: True)
    flat = {"device": "cpu", "dnns": ["object"]}

    def found(providers: list[str], **more: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        values = {f"dnn.object.{name}": value for name, value in {"providers": providers, **more}.items()}
        findings = check_settings(to_config({**flat, **values}))
        return findings.problems, findings.warnings

    assert found(["openvino:gpu", "cpu"]) == found(["openvino", "cpu"], precision="fp32") == ((), ())
    assert found(["cpu", "cuda"])[0] == (
        "parameter dnn.object.providers names 'cuda', but the device is cpu; allowed there: openvino, cpu",
    )
    ((problem,), _) = found(["openvino"], precision="int8", backend="onnxruntime")
    assert problem == "parameter dnn.object.precision is 'int8'; allowed with its providers: openvino: auto, fp32"
    (_, (warning,)) = found(["openvino"], backend="eager")
    assert warning == (
        "parameter dnn.object.providers is ['openvino'] and has no effect with backend eager on cpu; backends with "
        "execution providers: onnxruntime"
    )


def test_a_file_without_read_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = exported(tmp_path)
    monkeypatch.setattr("multi_dnn_ros.models.weights.os.access", lambda path, mode: False)  # root may read everything
    assert "cells.pt2': this user has no permission to read it" in problems({}, model=file, **YOLO)[0]


def test_truncated_external_data_is_reported(tmp_path: Path) -> None:
    written(tmp_path, "w.bin", bytes(100))
    (problem,) = problems({}, model=head(tmp_path, outside="w.bin"), decoder="grid", labels=["a"])
    assert "end at byte 1152 of" in problem
    assert "which has 100" in problem


def test_offline_verbs_reject_another_class_count_too() -> None:
    with pytest.raises(ModelError, match="num_classes is 7, but builtin:object has 2 classes"):
        load_network("builtin:object", num_classes=7)
