"""``multi-dnn retrain``: from a network and data by name to a better file, alone and in several processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from filelock import FileLock
from tiny_exports import SIZE, TinyOdd, TinyYolo, export
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.settings.schema import DnnConfig

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = ["--decoder", "classification"]


class _Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x - 1e6)


def exported(path: Path, *layers: nn.Module, side: tuple[int, int] = (16, 16)) -> Path:
    """A network for one image at a time."""
    network = nn.Sequential(*layers).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, side[1], side[0]),)), path)
    return path


def classifier(path: Path, classes: int = 2) -> Path:
    torch.manual_seed(0)
    return exported(
        path, nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)
    )


def arguments(model: str | Path, out: Path, data: str, *more: str | Path) -> list[str]:
    return ["retrain", str(model), "--output", str(out), "--data", data, "--device", "cpu", *map(str, more)]


def lanes(root: Path, size: tuple[int, int] = SIZE) -> str:
    """A vertical line in each image."""
    for offset, part in enumerate(("train", "val")):
        for number in range(3):
            mask = np.zeros((size[1], size[0]), np.uint8)
            left = 20 + 40 * offset + 3 * number
            mask[20:, left : left + 4] = 255
            for kind, shown in (("images", mask // 2), ("masks", mask)):
                (root / part / kind).mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(root / part / kind / f"{number}.png"), shown)
    return f"lanes:{root}"


def people(root: Path, label: str = "person", boxes_in_val: int = 4) -> str:
    """COCO data with a bright box in each image, which is a person."""
    (root / "annotations").mkdir(parents=True)
    for part, count in (("train", 4), ("val", boxes_in_val)):
        (root / part).mkdir()
        for k in range(4):
            image = np.random.default_rng(k).integers(0, 90, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
            image[10:40, 20:50] = 250
            cv2.imwrite(str(root / part / f"{k}.png"), image)
        content = {
            "images": [{"id": k, "file_name": f"{k}.png", "width": SIZE[0], "height": SIZE[1]} for k in range(4)],
            "categories": [{"id": 1, "name": label}],
            "annotations": [{"id": k, "image_id": k, "category_id": 1, "bbox": [20, 10, 30, 30]} for k in range(count)],
        }
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return f"coco:{root}"


def training_of(file: Path) -> dict[str, Any]:
    description = load_network(str(file)).description
    assert description is not None
    training: dict[str, Any] = description.provenance["training"]
    return training


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_detector_is_decomposed_retrained_and_loaded_into_the_node(tmp_path: Path) -> None:
    small, better = tmp_path / "small.safetensors", tmp_path / "better.safetensors"
    assert main(["decompose", "builtin:pedestrian", "--output", str(small), "--ratio", "0.6"]) == 0
    run = ["--scenes", "8", "--epochs", "1", "--batch-size", "4", "--teacher", "builtin:pedestrian", "--lr", "1e-5"]
    assert main(arguments(small, better, f"road:{tmp_path / 'road'}", *run)) == 0
    assert load_dnn("pedestrian", DnnConfig(role="pedestrian", model=str(better))).labels == ("pedestrian",)
    before, after = (load_network(str(path)).module.state_dict() for path in (small, better))
    assert before.keys() == after.keys()
    assert (weights_digest(before) != weights_digest(after)) is (training_of(better)["kept_epoch"] >= 0)


def test_lanes_learn_from_several_sets(tmp_path: Path) -> None:
    out, sets = tmp_path / "lane.safetensors", [f"road:{tmp_path / 'road'}", lanes(tmp_path / "own")]
    run = ["--data", sets[1], "--scenes", "2", "--epochs", "1", "--batch-size", "2"]
    assert main(arguments("builtin:lane", out, sets[0], *run)) == 0
    assert list(training_of(out)["data"]) == sets
    assert load_dnn("lane", DnnConfig(role="lane", model=str(out))).role == "lane"


def test_an_exported_program_is_trained_in_batches_and_teaches(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out, data = classifier(tmp_path / "in.pt2"), tmp_path / "out.pt2", f"classes:{colours}"
    run = [*CLASSES, "--epochs", "6", "--batch-size", "8", "--lr", "0.02", "--average", "0"]
    assert main(arguments(model, out, data, *run)) == 0
    assert re.findall(r"^epoch=(\d+) ", capsys.readouterr().err, re.MULTILINE) == list("123456")
    assert training_of(out)["test_scores"]["after"]["top1"] == 1.0
    assert load_network(str(out)).labels == ("green", "red")
    taught = [*CLASSES, "--teacher", out, "--epochs", "1", "--batch-size", "8"]
    assert main(arguments(model, tmp_path / "taught.pt2", data, *taught)) == 0


def test_a_written_file_keeps_preprocessing_and_decoder(tmp_path: Path) -> None:
    """Of an ONNX file with a metadata file. A decoder found by shapes is not written: the node decides for itself."""
    small, better = tmp_path / "small.pt2", tmp_path / "better.pt2"
    sidecar = "mean: [0.1, 0.2, 0.3]\nstd: [0.5, 0.6, 0.7]\ncolor: bgr\nresize: letterbox\ndecoder: lane\n"
    (tmp_path / "street.yaml").write_text(sidecar)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 1, 1))
    original, data = export(network, tmp_path / "street.onnx"), lanes(tmp_path / "lines", (SIZE[0], SIZE[0]))
    assert main(["decompose", str(original), "--output", str(small), "--alignment", "1"]) == 0
    assert main(arguments(small, better, data, "--epochs", "1", "--teacher", original)) == 0
    known = load_network(str(original))
    assert (known.preprocess["fit"], known.preprocess["bgr"], known.decoder) == ("letterbox", True, "lane")
    for file in (small, better):
        written = load_network(str(file))
        assert (written.preprocess, written.decoder) == (known.preprocess, known.decoder)
    plain = exported(tmp_path / "plain.pt2", nn.Conv2d(3, 1, 3, 2, 1), side=SIZE)
    assert main(arguments(plain, tmp_path / "out.pt2", data, "--epochs", "1")) == 0
    assert load_network(str(tmp_path / "out.pt2")).decoder == ""


def test_a_decoder_is_found_by_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", people(tmp_path / "people"), "--device", "cpu", "--labels", "person"]
    assert main(["evaluate", str(export(TinyYolo(1), tmp_path / "net.onnx")), *data]) == 0
    assert "are read as 'yolo'" in capsys.readouterr().err
    assert main(["evaluate", str(export(TinyOdd(), tmp_path / "odd.onnx")), *data]) == 1
    assert "no decoder reads outputs (1, 4, 5, 6, 7); nearest: " in capsys.readouterr().err


def test_two_processes_learn_what_one_learns(colours: Path, tmp_path: Path) -> None:
    """Batches of nine: two processes get four and five images of each."""
    model, data = classifier(tmp_path / "in.pt2"), f"classes:{colours}"
    run = [*CLASSES, "--epochs", "2", "--batch-size", "9", "--lr", "0.02", "--checkpoint"]
    one, two = tmp_path / "one.pt2", tmp_path / "two.pt2"
    assert main(arguments(model, one, data, *run, tmp_path / "one.ckpt")) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "multi_dnn_ros.cli.main", *arguments(model, two, data, *run, tmp_path / "two.ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to") == 1
    assert training_of(two)["processes"] == 2
    alone, together = (load_network(str(path)).module.state_dict() for path in (one, two))
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-4)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_wrong_combinations_are_one_line(colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = classifier(tmp_path / "in.pt2"), f"classes:{colours}"
    out = tmp_path / "out.pt2"
    out.write_bytes(b"the last good file")
    three, vgg = classifier(tmp_path / "three.pt2", classes=3), "torchvision:vgg11"
    large = exported(tmp_path / "large.pt2", nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2), side=(32, 32))
    nan = exported(tmp_path / "nan.pt2", nn.Flatten(), nn.Linear(768, 2), _Log())
    fixed = exported(tmp_path / "mean.pt2", nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.AdaptiveAvgPool1d(2))
    nobody = people(tmp_path / "nobody", "pedestrian", boxes_in_val=0)
    for code, message, command in [
        (2, "is not a writable folder", arguments(model, three / "out.pt2", data, *CLASSES)),
        (2, f"--checkpoint is {three}/c: {three} is no", arguments(model, out, data, "--checkpoint", three / "c")),
        (2, f"--report is {three}, which is a file; expected a folder", arguments(model, out, data, "--report", three)),
        (2, "are both", arguments(model, out, data, *CLASSES, "--checkpoint", out)),
        (2, "--weights is for torchvision:<builder>", arguments(model, out, data, *CLASSES, "--weights", "random")),
        (2, "would have random weights", arguments(model, out, data, "--weights", "random", "--teacher", vgg)),
        (2, "expected a .pt2 file", arguments(model, tmp_path / "out.safetensors", data, *CLASSES)),
        (1, "no.pt2': there is no such file", arguments(tmp_path / "no.pt2", out, data)),
        (1, "returns [(3,)] for an image, data", arguments(three, out, data, *CLASSES)),
        (1, "returns [(2,)] for an image, the teacher", arguments(model, out, data, *CLASSES, "--teacher", three)),
        (1, "must take the same input", arguments(model, out, data, *CLASSES, "--teacher", large)),
        (1, "holds lanes; the network is for classes", arguments(model, out, f"lanes:{colours}", *CLASSES)),
        (1, "takes 16x16 only", arguments(model, out, data, *CLASSES, "--size", "32x32")),
        (1, "epoch 1: the loss is nan; lower lr", arguments(nan, out, data, *CLASSES)),
        (1, "no weights that can be trained", arguments(fixed, out, data, *CLASSES)),
        (1, "part test: no true box in 4", arguments("builtin:pedestrian", tmp_path / "p.safetensors", nobody)),
        (2, "builtin:lane is for lanes", ["evaluate", "builtin:object", "builtin:lane", "--data", data]),
    ]:
        assert main(command) == code, message
        error = capsys.readouterr().err.splitlines()[-1]
        assert message in error
        assert "unexpected" not in error
    assert out.read_bytes() == b"the last good file"


def test_a_checkpoint_belongs_to_one_training_at_a_time(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out, data = tmp_path / "run" / "state", tmp_path / "out.pt2", f"classes:{colours}"
    command = arguments(
        classifier(tmp_path / "in.pt2"), out, data, *CLASSES, "--epochs", "1", "--checkpoint", checkpoint
    )
    with FileLock(checkpoint.with_name("state.lock")):
        assert main(command) == 1
    assert f"{checkpoint} is written by another training; end it first" in capsys.readouterr().err
    assert main(command) == 0
    before = checkpoint.read_bytes()
    assert main([*command, "--label-smoothing", "0.2"]) == 1
    assert "loss.smoothing is 0.1 there, 0.2 now" in capsys.readouterr().err
    assert checkpoint.read_bytes() == before
