"""Where DNNs come from: every source is described, gives the results that its network defines, and is safe to read."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import yaml
from bag_files import DETECTIONS, TOPIC, image_message, read_results, write_folder
from command import Done, run_commands, succeed, write_parameters
from networks import LABELS, Block, block_boxes, block_image, found_boxes, random_detector, write_onnx, write_pt2
from torchvision.ops import box_convert

#: File and decoder of the networks that find blocks.
FILES = {
    "yolo.onnx": "yolo",
    "postprocessed.onnx": "postprocessed",
    "detr_sigmoid.onnx": "detr_sigmoid",
    "network.pt2": "yolo",
}
DETECTOR = "torchvision:ssdlite320_mobilenet_v3_large"
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
    return run_commands(commands | {"small.safetensors": ["inspect", "small.safetensors"]}, models)


def pasted(done: CompletedProcess[str]) -> dict[str, Any]:
    """The parameters of the only DNN in what `inspect` shows to paste."""
    ((_, node),) = yaml.safe_load(done.stdout[done.stdout.index("/**:") :]).items()
    (dnn,) = node["ros__parameters"]["dnn"].values()
    return dict(dnn)


def test_inspect(inspected: Done) -> None:
    for name, done in inspected.items():
        assert done.returncode == 0, done.stderr
        parameters = pasted(done)
        if name in FILES:
            assert (parameters["decoder"], parameters["labels"]) == (FILES[name], LABELS)
            assert "64" in done.stdout
            assert "84" in done.stdout  # the sizes of its input and outputs
        assert Path(parameters["model"]).name == name
        assert parameters["role"] == "object"


def test_every_family_gives_the_results_of_its_network(inspected: Done, tmp_path: Path) -> None:
    """With the parameters that `inspect` shows, and through one replay of all at once."""
    dnns = {name.partition(".")[0]: pasted(done) for name, done in inspected.items()}
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(block_image(*BLOCKS), 0))])
    file = write_parameters(tmp_path / "robot.yaml", dnns)
    succeed("replay", source, tmp_path / "out", "--params-file", file)
    results = read_results(tmp_path / "out")
    for dnn in dnns:
        ((_, message),) = results[f"/multi_dnn/front/{dnn}/detections"]
        assert dnn == "small" or found_boxes(message) == block_boxes(*BLOCKS), dnn


def test_inspect_draws_what_it_finds(models: Path, tmp_path: Path) -> None:
    picture, found = tmp_path / "blocks.png", tmp_path / "found.png"
    plain = block_image(*BLOCKS)[..., ::-1]
    cv2.imwrite(str(picture), plain)
    shutil.copy(models / "yolo.onnx", tmp_path)
    (tmp_path / "yolo.yaml").write_text(f"labels: {json.dumps(LABELS)}\n")  # beside the model
    done = succeed("inspect", tmp_path / "yolo.onnx", "--json", "--image", picture, "--output", found)
    assert json.loads(done.stdout)["labels"] == LABELS
    assert (cv2.imread(str(found))[: plain.shape[0], : plain.shape[1]] != plain).any()


def test_a_torchvision_detector_agrees_with_torchvision(tmp_path: Path) -> None:
    network = random_detector()
    torch.save(network.state_dict(), tmp_path / "detector.pth")
    pixels = np.random.default_rng(1).integers(0, 256, (10, 10, 3), dtype=np.uint8).repeat(32, 0).repeat(32, 1)
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(pixels, 0))])
    dnn = {"role": "object", "model": DETECTOR, "weights": str(tmp_path / "detector.pth"), "jobs": 1}
    dnn |= {"score_threshold": 0.5, "iou_threshold": 0.55}  # the second is torchvision's for this network
    file = write_parameters(tmp_path / "robot.yaml", {"object": dnn})
    succeed("replay", source, tmp_path / "out", "--params-file", file)
    ((_, message),) = read_results(tmp_path / "out")[DETECTIONS]
    found = []
    for detection in message.detections:
        hypothesis, centre, box = detection.results[0].hypothesis, detection.bbox.center.position, detection.bbox
        found.append((int(hypothesis.class_id), hypothesis.score, centre.x, centre.y, box.size_x, box.size_y))
    with torch.inference_mode():
        wanted = network([torch.from_numpy(pixels).permute(2, 0, 1) / 255])[0]
    boxes = box_convert(wanted["boxes"], "xyxy", "cxcywh")
    rows = np.column_stack([wanted["labels"], wanted["scores"], boxes])[wanted["scores"].numpy() >= 0.5]
    assert len(found) == len(rows) > 5
    for row in rows:  # class, score, box in pixels
        nearest = min(found, key=lambda one: np.abs(one - row).max())
        np.testing.assert_array_less(np.abs(nearest - row), [0.5, 0.02, 1, 1, 1, 1])


def test_files_that_are_truncated_or_do_not_fit(models: Path, tmp_path: Path) -> None:
    """A wrong number of names, a decoder of other outputs: what is there, or allowed."""
    commands: dict[str, list[Any]] = {}
    for name in ("yolo.onnx", "network.pt2", "small.safetensors"):
        whole = (models / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
        commands[name] = ["inspect", name, "--labels", *LABELS]
    commands["(1, 7, 84)"] = ["inspect", models / "yolo.onnx", "--labels", "red", "green"]
    commands["ufldv2"] = ["inspect", models / "yolo.onnx", "--decoder", "ufldv2"]
    check_rejected(commands, tmp_path)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_hostile_files_run_no_code(models: Path, tmp_path: Path) -> None:
    """Pickles under the names that a model file may have."""
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Hostile(trace)))  # noqa: S301
    trace.unlink()  # it would have worked
    (tmp_path / "a.safetensors").write_bytes(pickle.dumps({"weight": Hostile(trace)}))
    torch.save({"weight": Hostile(trace)}, tmp_path / "c.pth")
    with zipfile.ZipFile(models / "network.pt2") as old, zipfile.ZipFile(tmp_path / "d.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, (tmp_path / "c.pth").read_bytes() if name.endswith(".pt") else old.read(name))
    commands = {name: ["inspect", name, "--labels", *LABELS] for name in ("a.safetensors", "d.pt2")}
    check_rejected({**commands, "c.pth": ["inspect", DETECTOR, "--weights", "c.pth"]}, tmp_path)
    assert not trace.exists()


def check_rejected(commands: dict[str, list[Any]], folder: Path) -> None:
    """Each ends with exit code 1, without a traceback, and names its key."""
    for name, done in run_commands(commands, folder).items():
        assert done.returncode == 1, f"{name}: {done.stdout}"
        assert name in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
