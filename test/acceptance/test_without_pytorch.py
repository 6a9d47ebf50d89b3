"""A CPU needs no PyTorch: every process of `inspect`, `replay` and the node works where importing it fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bag_files import TOPIC, image_message, read_results, write_folder
from command import multi_dnn, succeed, write_parameters
from harness import Client, DnnOnCamera, Node
from networks import LABELS, Block, block_boxes, block_image, found_boxes, write_onnx

BLOCKS = [Block(1, 2, 0), Block(2, 0, 1, 200)]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _without_pytorch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("packages")
    for name in ("torch", "torchvision", "onnx2torch"):
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('there is none', name='{name}')\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_commands(tmp_path: Path) -> None:
    model = write_onnx("yolo", tmp_path / "yolo.onnx")
    for name, labels in (("builtin:lane", []), (str(model), ["--labels", *LABELS])):
        succeed("inspect", name, *labels)
    dnns = {
        "object": {"role": "object", "model": str(model), "labels": LABELS},
        "lane": {"role": "lane", "model": "builtin:lane"},
    }
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(block_image(*BLOCKS), 0))])
    file = write_parameters(tmp_path / "robot.yaml", dnns)
    succeed("replay", source, tmp_path / "out", "--params-file", file, "--overlay", tmp_path / "seen.mp4")
    ((_, message),) = read_results(tmp_path / "out")["/multi_dnn/front/object/detections"]
    assert found_boxes(message) == block_boxes(*BLOCKS)
    done = multi_dnn("inspect", "torchvision:ssdlite320_mobilenet_v3_large", "--weights", "random")
    assert done.returncode == 1
    assert "multi_dnn_ros[torch]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_node(client: Client, start_node: Callable[..., Node], tmp_path: Path) -> None:
    model = write_onnx("yolo", tmp_path / "yolo.onnx")
    node = start_node(
        {"dnns": ["object"], "dnn": {"object": {"role": "object", "model": str(model), "labels": LABELS}}}
    )
    node.wait_until_active()
    served = DnnOnCamera(node, "object").connect(block_image())
    assert found_boxes(served.answer(block_image(*BLOCKS))) == block_boxes(*BLOCKS)
