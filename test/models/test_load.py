"""Sources of DNNs, and the errors for DNNs that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from multi_dnn_ros.common.extensions import DECODERS, names
from multi_dnn_ros.decoders.base import DEFAULT_SCORE_THRESHOLD
from multi_dnn_ros.decoders.registry import DECODERS as REGISTRY
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn, results_of
from multi_dnn_ros.settings.schema import DnnConfig, OutputConfig
from multi_dnn_ros.vision.results import Detections, Lanes

BUILDER = "ssdlite320_mobilenet_v3_large"


def config(**values: object) -> DnnConfig:
    return DnnConfig(**{"role": "object", **values})


def run(dnn, image: np.ndarray) -> Detections | Lanes:
    with torch.inference_mode():
        outputs = dnn.module(*dnn.inputs(torch.from_numpy(image)))
    flat = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
    return dnn.decoder(tuple(flat), image.shape[:2])


@pytest.mark.parametrize(("role", "labels"), [("lane", ("lane",)), ("object", ("car", "truck")),
                                              ("pedestrian", ("pedestrian",))])  # fmt: skip
@pytest.mark.parametrize("suffix", ["", "_small"])
def test_builtin(role: str, labels: tuple[str, ...], suffix: str) -> None:
    dnn = load_dnn(role, config(role=role, model=f"builtin:{role}{suffix}"))
    assert dnn.labels == labels
    assert not dnn.module.training
    assert isinstance(run(dnn, np.zeros((48, 64, 3), np.uint8)), Lanes if role == "lane" else Detections)


def test_a_builtin_has_its_own_score_threshold() -> None:
    for model, own in SCORE_THRESHOLDS.items():
        role = model.partition("_")[0]
        decoder = load_dnn(role, config(role=role, model=f"builtin:{model}")).decoder
        assert decoder.score_threshold == own, model
        decoder.score_threshold = 0.3
        assert decoder.score_threshold == 0.3
        decoder.score_threshold = 0.0  # as the parameter may be set while the node runs
        assert decoder.score_threshold == own, model
    other = config(model=f"torchvision:{BUILDER}", weights="random")
    assert load_dnn("object", other).decoder.score_threshold == DEFAULT_SCORE_THRESHOLD
    chosen = config(role="object", model="builtin:object", score_threshold=0.25)
    assert load_dnn("object", chosen).decoder.score_threshold == 0.25


def test_exported_program(tmp_path: Path) -> None:
    dnn = load_dnn("object", config(model="builtin:object"))
    file = tmp_path / "object.pt2"
    torch.export.save(torch.export.export(dnn.module, dnn.example_inputs()), file)
    copy = load_dnn("copy", config(model=str(file), decoder="yolo", labels=["car", "truck"], resize="stretch"))
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    copy.decoder.score_threshold = dnn.decoder.score_threshold = 1e-9
    np.testing.assert_allclose(run(copy, image).scores, run(dnn, image).scores, atol=1e-5)


def test_errors_of_an_exported_program(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Flatten(2), nn.Sigmoid())
    file = tmp_path / "object.pt2"
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 192, 256),)), file)
    with pytest.raises(ModelError, match=r"\(1, 6, 3072\), but decoder yolo"):
        load_dnn("copy", config(model=str(file), decoder="yolo", labels=["car"]))
    recognized = load_dnn("copy", config(model=str(file), labels=["car", "truck"]))
    assert recognized.decoder.name == "yolo"  # by the shape of its output
    with pytest.raises(ModelError, match=r"labels is \[\]; .* needs a name for each of its 2 classes"):
        load_dnn("copy", config(model=str(file)))
    with pytest.raises(ModelError, match=r"decoder is 'auto'.*yolo reads .*2 classes in the outputs, but 3 class"):
        load_dnn("copy", config(model=str(file), labels=["car", "truck", "bus"]))
    with pytest.raises(ModelError, match=r"labels is \[\]"):
        load_dnn("copy", config(model=str(file), decoder="yolo"))
    with pytest.raises(ModelError, match=r"ask for 32 x 192; allowed .*: 256 x 192"):
        load_dnn("copy", config(model=str(file), decoder="yolo", labels=["car", "truck"], input_width=32))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    source = torchvision.models.get_model(BUILDER, weights=None, weights_backbone=None, num_classes=3)
    file = tmp_path / f"weights{suffix}"
    save = save_file if suffix == ".safetensors" else torch.save
    save({name: value.contiguous() for name, value in source.state_dict().items()}, file)
    values = {"model": f"torchvision:{BUILDER}", "weights": str(file), "labels": ["none", "cat", "dog"]}
    dnn = load_dnn("object", config(num_classes=3, **values))
    own = dnn.module.state_dict()
    assert all(torch.equal(own[name], value) for name, value in source.state_dict().items() if name in own)
    with pytest.raises(ModelError, match=r"has shape \(\d+, .*the network's \(\d+, "):
        load_dnn("object", config(num_classes=4, **{**values, "labels": list("abcd")}))


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors", "m.pt2", "m.onnx"])
@pytest.mark.parametrize("content", [b"", b"not a model at all", b"PK\x03\x04" + b"\0" * 64])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    values = {"model": str(file), "decoder": "yolo", "labels": ["car"]}
    if name.startswith("w"):
        values = {"model": f"torchvision:{BUILDER}", "weights": str(file)}
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        load_dnn("object", config(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "builtin:sofa"}, r"dnn\.x\.model is 'builtin:sofa'; allowed: builtin:lane,.* builtin:pedestrian"),
        ({"model": "model.pkl"}, r"model is 'model\.pkl'; allowed: .*\.onnx file"),
        ({"model": "missing.pt2"}, r"model is 'missing\.pt2': there is no such file"),
        ({"model": "~nobody here/a.pt2"}, r"model is '~nobody here/a\.pt2': the home folder of this user is not known"),
        ({"model": f"{300 * 'a'}.onnx"}, r"dnn\.x\.model is 'a+\.onnx': the file cannot be found: File name too long"),
        ({"model": "torchvision:resnet18", "weights": "random"}, r"allowed builders: .*ssd300_vgg16"),
        ({"model": "torchvision:fasterrcnn_resnet50_fpn", "weights": "random"}, r"two-stage detector.*RetinaNet"),
        ({"model": f"torchvision:{BUILDER}"}, r"weights is 'default'; allowed: COCO_V1, random"),
        ({"model": f"torchvision:{BUILDER}", "weights": "w.pth"}, r"weights is 'w\.pth': there is no such file"),
        (
            {"model": "builtin:object", "weights": "random"},
            r"weights is 'random'; allowed with builtin:object: default",
        ),
        ({"model": "builtin:object", "role": "lane"}, r"role is 'lane', but builtin:object is decoded as 'yolo'"),
        ({"model": "builtin:object", "keep": ["cat"]}, r"keep = \['cat'\]: no class 'cat'; allowed: car, truck"),
        ({"model": "builtin:object", "labels": ["a"]}, r"labels has 1 names, but builtin:object has 2 classes"),
        (
            {"model": "builtin:object", "decoder": "torchvision"},
            r"decoder is 'torchvision'; allowed .*yolo, grid, segmentation, lane",
        ),
        ({"model": "builtin:object", "mean": [1.0]}, r"each needs one value for each of 3 channels"),
    ],
)
def test_wrong_parameters(values: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_dnn("x", config(**values))


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm2d(3), nn.Dropout2d(0.1)])
def test_a_network_that_was_exported_while_training_is_refused(part: nn.Module, tmp_path: Path) -> None:
    """Its results would change from run to run, or depend on the other images of the batch."""
    network = nn.Sequential(part, nn.Conv2d(3, 5, 1), nn.Flatten(2))
    file = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 8, 8),)), file)
    with pytest.raises(ModelError, match=r"net\.pt2: was exported in training mode \(.*; call eval\(\)"):
        load_dnn("x", config(model=str(file), decoder="yolo", labels=["a"]))
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 8, 8),)), file)
    load_dnn("x", config(model=str(file), decoder="yolo", labels=["a"]))


def test_outputs_that_do_not_fit_the_decoder_are_an_error_when_loading(tmp_path: Path) -> None:
    program = torch.export.export(nn.Flatten(), (torch.zeros(1, 3, 8, 8),))
    file = tmp_path / "flat.pt2"
    torch.export.save(program, file)
    with pytest.raises(ModelError, match=r"flat\.pt2: outputs of shapes \(1, 192\), but decoder yolo"):
        load_dnn("x", config(model=str(file), decoder="yolo", labels=["a"]))


def labels_of(decoder: str, *, of_dnn: list[str], of_output: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Parameter `labels` of a result, and the names that the model has for it."""
    output = OutputConfig(decoder=decoder, labels=of_output)
    config = DnnConfig(role="network", model="net.onnx", labels=of_dnn, outputs={"one": output})
    part = results_of(Source(nn.Identity(), (64, 32), "", ("a", "b")), "road", config)["one"]
    return list(part.config.labels), part.source.labels


@pytest.mark.parametrize("decoder", names(DECODERS))
def test_only_lines_and_areas_have_the_names_of_their_decoder(decoder: str) -> None:
    spec = REGISTRY.get(decoder)
    own = list(spec.default_labels) if spec.result_kind in ("lanes", "drivable_area") else []
    assert labels_of(decoder, of_dnn=["car"], of_output=[])[0] == (own or ["car"])
    assert labels_of(decoder, of_dnn=[], of_output=[]) == (own, () if own else ("a", "b"))
    assert labels_of(decoder, of_dnn=["car"], of_output=["bus"]) == (["bus"], ())
