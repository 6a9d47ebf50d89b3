"""Where DNNs come from: every source is described, gives the results that its network defines, and is safe to read."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import torch
import yaml
from bag_files import TOPIC, image_message, read_results, write_folder
from command import Done, run_commands, succeed, write_parameters
from harness import Client, DnnOnCamera, Node
from networks import (
    LABELS,
    Block,
    block_boxes,
    block_image,
    found_boxes,
    random_detector,
    random_segmentation,
    write_onnx,
    write_pt2,
)
from safetensors.torch import save_file

#: File and decoder of the networks that find blocks.
FILES = {
    "yolo.onnx": "yolo",
    "postprocessed.onnx": "postprocessed",
    "detr_sigmoid.onnx": "detr_sigmoid",
    "network.pt2": "yolo",
}
OTHERS = ["small.safetensors"]
DETECTOR, SEGMENTATION = "torchvision:ssdlite320_mobilenet_v3_large", "torchvision:lraspp_mobilenet_v3_large"
BLOCKS = [Block(1, 2, 0), Block(2, 0, 1, 200), Block(3, 3, 2, 160)]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of FILES and of a decomposed network."""
    folder: Path = tmp_path_factory.mktemp("models")
    for name, family in FILES.items():
        if name.endswith(".onnx"):
            write_onnx(family, folder / name)
    write_pt2(folder / "network.pt2")
    succeed("decompose", "builtin:object", "--output", folder / "small.safetensors")
    return folder


@pytest.fixture(scope="module")
def inspected(models: Path) -> Done:
    """What `inspect` says of each model."""
    commands: dict[str, list[str | Path]] = {name: ["inspect", name, "--labels", *LABELS] for name in FILES}
    commands |= {name: ["inspect", name] for name in OTHERS}
    return run_commands(commands, models)


def pasted(done: CompletedProcess[str]) -> dict[str, Any]:
    """The parameters of the only DNN in what `inspect` shows to paste."""
    ((_, node),) = yaml.safe_load(done.stdout[done.stdout.index("/**:") :]).items()
    (dnn,) = node["ros__parameters"]["dnn"].values()
    return dict(dnn)


def test_inspect(models: Path, inspected: Done) -> None:
    for name, done in inspected.items():
        assert done.returncode == 0, done.stderr
        parameters = pasted(done)
        if name in FILES:
            assert (parameters["decoder"], parameters["labels"]) == (FILES[name], LABELS)
            assert "64" in done.stdout
            assert "84" in done.stdout  # the sizes of its input and outputs
        assert Path(parameters["model"]).name == name
        assert parameters["role"] == "object"


def test_every_family_gives_the_results_of_its_network(models: Path, inspected: Done, tmp_path: Path) -> None:
    """With the parameters that `inspect` shows, and through one replay of all at once."""
    dnns = {name.partition(".")[0]: pasted(inspected[name]) for name in FILES}
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(block_image(*BLOCKS), 0))])
    file = write_parameters(tmp_path / "robot.yaml", dnns)
    succeed("replay", source, tmp_path / "out", "--params-file", file)
    results = read_results(tmp_path / "out")
    for dnn in dnns:
        ((_, message),) = results[f"/multi_dnn/front/{dnn}/detections"]
        assert found_boxes(message) == block_boxes(*BLOCKS), dnn


def test_the_node_serves_model_files(
    models: Path, client: Client, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    dnns = {
        "exported": {"role": "object", "model": str(models / "network.pt2"), "labels": LABELS},
        "small": {"role": "object", "model": str(models / "small.safetensors")},
    }
    node = start_node({"dnns": list(dnns), "dnn": dnns})
    node.wait_until_active()
    exported = DnnOnCamera(node, "exported").connect(block_image())
    assert found_boxes(exported.answer(block_image(*BLOCKS))) == block_boxes(*BLOCKS)
    DnnOnCamera(node, "small", camera=exported.camera).connect(block_image())


def test_inspect_draws_what_it_finds(models: Path, tmp_path: Path) -> None:
    picture, found = tmp_path / "blocks.png", tmp_path / "found.png"
    plain = block_image(*BLOCKS)[..., ::-1]
    cv2.imwrite(str(picture), plain)
    shutil.copy(models / "yolo.onnx", tmp_path)
    (tmp_path / "yolo.yaml").write_text(f"labels: {json.dumps(LABELS)}\n")  # beside the model
    done = succeed("inspect", tmp_path / "yolo.onnx", "--json", "--image", picture, "--output", found)
    assert json.loads(done.stdout)["labels"] == LABELS
    assert (cv2.imread(str(found))[: plain.shape[0], : plain.shape[1]] != plain).any()


def test_torchvision_networks_agree_with_torchvision(models: Path, tmp_path: Path) -> None:
    """Boxes and classes of a detector, and the class of each pixel of a segmentation network."""
    detector, segmentation = random_detector(), random_segmentation()
    torch.save(detector.state_dict(), tmp_path / "detector.pth")
    save_file(segmentation.state_dict(), tmp_path / "segmentation.safetensors")
    pixels = np.random.default_rng(1).integers(0, 256, (10, 10, 3), dtype=np.uint8).repeat(32, 0).repeat(32, 1)
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(pixels, 0))])
    boxes = {"role": "object", "model": DETECTOR, "weights": str(tmp_path / "detector.pth"), "jobs": 1}
    boxes |= {"score_threshold": 0.5, "iou_threshold": 0.55}  # the second is torchvision's for this network
    classes = {"role": "road", "model": SEGMENTATION, "weights": str(tmp_path / "segmentation.safetensors"), "jobs": 1}
    classes |= {"decoder": "segmentation", "input_width": 320, "input_height": 320}
    dnns = {"boxes": boxes, "classes": classes}
    file = write_parameters(tmp_path / "robot.yaml", dnns)
    succeed("replay", source, tmp_path / "out", "--params-file", file)
    results = read_results(tmp_path / "out")
    image = torch.from_numpy(pixels).permute(2, 0, 1) / 255

    ((_, message),) = results["/multi_dnn/front/boxes/detections"]
    found = []
    for detection in message.detections:
        centre, box = detection.bbox.center.position, detection.bbox
        half = box.size_x / 2, box.size_y / 2
        corners = centre.x - half[0], centre.y - half[1], centre.x + half[0], centre.y + half[1]
        found.append((int(detection.results[0].hypothesis.class_id), detection.results[0].hypothesis.score, *corners))
    with torch.inference_mode():
        wanted = detector([image])[0]
    rows = np.column_stack([wanted["labels"], wanted["scores"], wanted["boxes"]])[wanted["scores"].numpy() >= 0.5]
    assert len(found) == len(rows) > 5
    for row in rows:  # class, score, corners in pixels
        nearest = min(found, key=lambda one: np.abs(one - row).max())
        np.testing.assert_array_less(np.abs(nearest - row), [0.5, 0.02, 1, 1, 1, 1])

    ((_, message),) = results["/multi_dnn/front/classes/mask"]
    mask = np.frombuffer(message.data, np.uint8).reshape(320, 320)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    with torch.inference_mode():
        classes = segmentation(((image - mean) / deviation)[None])["out"][0].argmax(0).numpy()
    assert len(np.unique(classes)) > 2
    assert (mask == classes).mean() > 0.99


def test_truncated_files(models: Path, tmp_path: Path) -> None:
    names = ["yolo.onnx", "network.pt2", "small.safetensors"]
    for name in names:
        whole = (models / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
    check_rejected({name: ["inspect", name, "--labels", *LABELS] for name in names}, tmp_path)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_hostile_files_run_no_code(models: Path, tmp_path: Path) -> None:
    """Pickles under every name that a model file may have, and an .onnx file with data of another folder."""
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Hostile(trace)))  # noqa: S301
    trace.unlink()  # it would have worked
    (tmp_path / "a.safetensors").write_bytes(pickle.dumps({"weight": Hostile(trace)}))
    for name in ("b.pt2", "c.pth"):
        torch.save({"weight": Hostile(trace)}, tmp_path / name)
    with zipfile.ZipFile(models / "network.pt2") as old, zipfile.ZipFile(tmp_path / "d.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, (tmp_path / "c.pth").read_bytes() if name.endswith(".pt") else old.read(name))
    (tmp_path / "secret.bin").write_bytes(bytes(36))
    network = onnx.load(models / "yolo.onnx")
    (weight,) = (tensor for tensor in network.graph.initializer if tensor.name == "colors.weight")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "../secret.bin", "length": "36"}.items():
        weight.external_data.add(key=key, value=value)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "e.onnx").write_bytes(network.SerializeToString())

    names = ["a.safetensors", "b.pt2", "d.pt2", "folder/e.onnx"]
    commands = {name: ["inspect", name, "--labels", *LABELS] for name in names}
    check_rejected({**commands, "c.pth": ["inspect", DETECTOR, "--weights", "c.pth"]}, tmp_path)
    assert not trace.exists()


def test_models_that_do_not_fit(models: Path) -> None:
    """A wrong number of names, a decoder of other outputs: what is there, or allowed."""
    commands = {
        "(1, 7, 84)": ["inspect", models / "yolo.onnx", "--labels", "red", "green"],
        "ufldv2": ["inspect", models / "yolo.onnx", "--decoder", "ufldv2"],
    }
    check_rejected(commands, models)


def check_rejected(commands: dict[str, list[Any]], folder: Path) -> None:
    """Each ends with exit code 1, without a traceback, and names its key."""
    for name, done in run_commands(commands, folder).items():
        assert done.returncode == 1, f"{name}: {done.stdout}"
        assert name in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
