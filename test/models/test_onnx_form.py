"""The ONNX form of networks that are no .onnx files: the same network, made once, and then without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.numpy import load_file
from torch import nn

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions
from multi_dnn_ros.models import onnx_form
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_network import OnnxNetwork, run_network
from multi_dnn_ros.models.registry import BUILTIN
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.schema import DnnConfig


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "multi_dnn_ros" / "onnx"


def config(model: str | Path, **values: Any) -> DnnConfig:
    return DnnConfig(role="network", model=str(model), **values)


@pytest.mark.parametrize("name", SCORE_THRESHOLDS)
def test_built_in_networks_are_shipped_with_the_same_weights(name: str) -> None:
    assert BUILTIN.file is not None
    assert BUILTIN.onnx_file is not None
    graph = onnx.load(BUILTIN.onnx_file(name)).graph
    shipped = {numpy_helper.to_array(tensor).tobytes() for tensor in graph.initializer}
    used = {key: value for key, value in load_file(BUILTIN.file(name)).items() if value.ndim >= 2}
    assert all(value.tobytes() in shipped for value in used.values())
    own, right = (load_dnn("x", config(f"builtin:{name}"), onnx=onnx) for onnx in (True, False))
    assert isinstance(own.module, OnnxNetwork)
    assert (own.labels, own.preprocess.key, own.result_kind) == (right.labels, right.preprocess.key, right.result_kind)
    assert own.decoder.own_threshold == right.decoder.own_threshold
    sources = (load_source("x", config(f"builtin:{name}"), onnx=onnx) for onnx in (True, False))
    form, source = (replace(each, module=None, outputs=None, description=None) for each in sources)
    assert form == source
    image = np.random.default_rng(0).random((1, 3, own.preprocess.height, own.preprocess.width), np.float32)
    for found, expected in zip(run_network(own.module, image), run_network(right.module, image), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


SEGMENTATION: dict[str, Any] = {
    "model": "torchvision:lraspp_mobilenet_v3_large", "weights": "random", "num_classes": 3, "decoder": "lane",
    "labels": ["no", "a", "b"], "keep": ["a"], "input_width": 64, "input_height": 64,
}  # fmt: skip


def exported(path: Path, bias: float) -> Path:
    network = nn.Sequential(nn.Conv2d(3, 7, 4, 4), nn.Flatten(2)).eval()
    nn.init.constant_(network[0].bias, bias)  # type: ignore[arg-type]
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 32, 48),)), path)
    return path


SCRIPT = """
import sys
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig
for model, values in {0!r}.items():
    config = DnnConfig(role="network", model=model, **values)
    load_dnn("x", config, onnx=True)
print("torch" in sys.modules)
"""


def test_a_kept_form_needs_no_pytorch(cache: Path, tmp_path: Path) -> None:
    file = exported(tmp_path / "net.pt2", 1.0)
    detector = {"weights": "random", "num_classes": 3, "labels": ["no", "a", "b"]}
    detector |= {"input_width": 96, "input_height": 96}
    models: dict[str, Any] = {
        "builtin:object": {},
        str(file): {"labels": ["a", "b", "c"], "decoder": "yolo"},
        "torchvision:ssdlite320_mobilenet_v3_large": detector,
    }
    first = {name: load_dnn("x", config(name, **values), onnx=True) for name, values in models.items()}
    assert len(list(cache.iterdir())) == 2
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(models)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "False\n"
    for name, values in models.items():  # and it gives the same results, anchors included
        again = load_dnn("x", config(name, **values), onnx=True)
        image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
        found, wanted = (
            dnn.results(run_network(dnn.module, *dnn.array_inputs(image)), (96, 96)) for dnn in (again, first[name])
        )
        np.testing.assert_array_equal(found.boxes, wanted.boxes)


def test_another_file_is_exported_and_a_damaged_form_again(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values: dict[str, Any] = {"labels": ["a", "b", "c"], "decoder": "yolo"}

    def result() -> Any:
        dnn = load_dnn("x", config(tmp_path / "net.pt2", **values), onnx=True)
        return run_network(dnn.module, np.zeros((1, 3, 32, 48), np.float32))[0]

    for bias in (1.0, 2.0):
        exported(tmp_path / "net.pt2", bias)
        assert np.all(result() == bias)
    assert len(list(cache.iterdir())) == 2
    for kept in cache.iterdir():
        kept.write_bytes(kept.read_bytes()[:100])
    assert np.all(result() == 2.0)
    assert "is damaged and is made again" in caplog.text
    caplog.clear()
    assert np.all(result() == 2.0)
    assert "made again" not in caplog.text


def test_a_batch_is_kept_as_well(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dnn = load_dnn("x", config(exported(tmp_path / "net.pt2", 1.0), labels=["a", "b", "c"], decoder="yolo"), onnx=True)
    with pytest.raises(Exception, match=r"shape|size"):  # torch.export fixed the number of images
        dnn.module.for_images(2)
    network = load_dnn("x", DnnConfig(role="network", **SEGMENTATION), onnx=True).module
    graph = network.for_images(2)
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    monkeypatch.setattr(onnx_form, "_exported", None)
    assert network.for_images(2) == graph


@pytest.mark.parametrize("name", ["lane", "object_small"])
def test_batches_of_built_in_networks_are_made_from_the_shipped_form(cache: Path, name: str) -> None:
    dnn = load_dnn("x", config(f"builtin:{name}"), onnx=True)
    images = np.random.default_rng(0).random((3, 3, dnn.preprocess.height, dnn.preprocess.width), np.float32)
    for jobs in (1, 3, 8):
        stages = make_sessions(dnn.module.for_images(3), jobs)
        for found, *alone in zip(
            run_stages(stages, (images,)), *(dnn.module(images[row : row + 1]) for row in range(3)), strict=True
        ):
            np.testing.assert_allclose(found, np.concatenate(alone), rtol=1e-4, atol=1e-4)
    assert not cache.exists()  # nothing that outlives an update of the package


WITHOUT_PYTORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig
cameras = {name: CameraConfig(topic=f"/{name}") for name in "ab"}
try:
    values = %r
    dnns = {"x": DnnConfig(role="network", **values)}
    pipeline = build(NodeConfig(cameras=cameras, dnns=dnns))
    print("batches of", pipeline.tasks[0].max_batch)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "builtin:object", "max_batch": 2}, "batches of 2"),
        ({"model": "builtin:objct"}, "allowed: builtin:lane, "),
        ({"model": "builtin:object", "input_width": 64, "input_height": 64}, "allowed with builtin:object: 384 x 288"),
        ({"model": "torchvision:fcos_resnet50_fpn", "weights": "~nobody_here/x.pth"}, "multi_dnn_ros[torch]"),
    ],
)
def test_without_pytorch(values: dict[str, Any], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH % values], capture_output=True, text=True, check=True, timeout=120
    )
    assert said in done.stdout
