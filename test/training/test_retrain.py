"""``multi-dnn retrain`` and ``evaluate``: from a network and data by name to a better file, a report, or one line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import cv2
import killed_training
import numpy as np
import pytest
import torch
from fixed_batches import FixedBatches
from fork_server import ForkServer
from torch import nn

from multi_dnn_ros.cli import network_arguments
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.file_lock import lock_file
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.sources import load_artifact, load_network
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.data import Data
from multi_dnn_ros.training.loop import Schedule, train
from multi_dnn_ros.training.losses import ClassificationLoss
from multi_dnn_ros.training.retrain import _loss, retrain
from multi_dnn_ros.training.trainable import Trainable, make_trainable
from multi_dnn_ros.vision.preprocess import Preprocess

pytestmark = pytest.mark.usefixtures("one_thread")


def small_classifier(path: Path, classes: int = 2) -> Path:
    """An exported network for one image at a time."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)
    ).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    return path


class _Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x - 1e6)


def not_a_number(path: Path) -> Path:
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 2), _Log()).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def arguments(model: str | Path, out: Path, data: str, *more: str) -> list[str]:
    return ["retrain", str(model), "--output", str(out), "--data", data, "--device", "cpu", *more]


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.mark.long  # an exported program below
def test_a_builder_learns_classes_and_is_evaluated(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = tmp_path / "net.safetensors", f"classes:{colours}"
    builder = ["--weights", "random", "--num-classes", "2", "--size", "32x32"]
    run = ["--epochs", "8", "--batch-size", "8", "--average", "0"]
    assert main(arguments("torchvision:resnet18", out, data, *builder, *run)) == 0
    assert "top1" in capsys.readouterr().out
    _, description = load_artifact(out)
    assert (description.model, description.num_classes, description.input_size) == ("torchvision:resnet18", 2, (32, 32))
    assert description.labels == ("green", "red")
    training = description.provenance["training"]
    assert training["test_scores"]["after"]["top1"] == 1.0
    assert list(training["data"]) == [data]
    assert training["schedule"]["epochs"] == 8
    assert len(training["history"]) == 8

    small = tmp_path / "small.safetensors"
    assert main(["decompose", str(out), "--output", str(small), "--ratio", "0.5"]) == 0
    better = tmp_path / "better.safetensors"
    assert main(arguments(small, better, data, "--teacher", str(out), "--epochs", "1")) == 0
    _, description = load_artifact(better)
    assert description.plan
    assert description.provenance["training"]["teacher"] == {"model": str(out), "weight": 0.5}
    assert description.provenance["source"]["provenance"]["ranks"]["ratio"] == 0.5
    capsys.readouterr()

    report = tmp_path / "report"
    models = [str(out), str(small), str(better)]
    assert main(["evaluate", *models, "--data", data, "--device", "cpu", "--report", str(report)]) == 0
    shown = capsys.readouterr().out
    content = json.loads((report / "report.json").read_text())
    assert [network["model"] for network in content["networks"]] == models
    first, second, third = content["networks"]
    assert first["scores"][data] == {"images": 12, "top1": 1.0, "top5": 1.0}
    assert second["macs"] == third["macs"] < first["macs"]
    assert second["decomposed_layers"] == len(description.plan)
    assert third["scores"][data]["top1"] == pytest.approx(
        description.provenance["training"]["test_scores"]["after"]["top1"]
    )
    assert all(model in shown for model in models)


# Shorter tests: test_training_command trains a detector, test_cli_decompose loads a decomposed network into the node, a
# test below loads a retrained one, and test_served evaluates and times networks.
@pytest.mark.long
def test_a_detector_is_decomposed_retrained_and_loaded_into_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, better = tmp_path / "small.safetensors", tmp_path / "better.safetensors"
    assert main(["decompose", "builtin:pedestrian", "--output", str(small), "--ratio", "0.6"]) == 0
    road = f"road:{tmp_path / 'road'}"
    run = ["--scenes", "8", "--epochs", "1", "--batch-size", "4", "--teacher", "builtin:pedestrian"]
    assert main(arguments(small, better, road, *run)) == 0
    dnn = load_dnn("pedestrian", DnnConfig(role="pedestrian", model=str(better)))
    assert dnn.labels == ("pedestrian",)
    before, after = (load_artifact(path)[0].state_dict() for path in (small, better))
    assert before.keys() == after.keys()
    assert weights_digest(before) != weights_digest(after)
    capsys.readouterr()
    report, few = tmp_path / "report", ["--scenes", "8", "--limit", "3", "--device", "cpu", "--report"]
    timed = ["--latency", "--backend", "eager"]
    for models, more in ((["builtin:pedestrian", str(better)], []), ([str(better)], timed)):
        assert main(["evaluate", *models, "--data", road, *more, *few, str(report)]) == 0
        networks = json.loads((report / "report.json").read_text())["networks"]
        assert [network["model"] for network in networks] == models
        assert all(network["scores"][road]["images"] == 3 for network in networks)
    assert [entry["instances"] for entry in networks[0]["latency_ms"]] == [1, 2]
    assert all(entry["ms"] > 0 for entry in networks[0]["latency_ms"])


def test_lanes_learn_from_several_sets(tmp_path: Path) -> None:
    mask = np.zeros((96, 160), np.uint8)
    mask[:, 70:76] = 255
    for part in ("train", "val"):
        for kind in ("images", "masks"):
            (tmp_path / "own" / part / kind).mkdir(parents=True)
            for k in range(2):
                shown = mask if kind == "masks" else mask // (1 + k)
                cv2.imwrite(str(tmp_path / "own" / part / kind / f"{part}{k}.png"), shown)
    out = tmp_path / "lane.safetensors"
    sets = [f"road:{tmp_path / 'road'}", "--data", f"lanes:{tmp_path / 'own'}"]
    assert main(arguments("builtin:lane", out, *sets, "--scenes", "2", "--epochs", "1", "--batch-size", "2")) == 0
    training = load_artifact(out)[1].provenance["training"]
    assert list(training["data"]) == [sets[0], sets[2]]
    assert 0.0 <= training["test_scores"]["after"]["f1"] <= 1.0
    assert load_dnn("lane", DnnConfig(role="lane", model=str(out))).role == "lane"


def test_an_exported_program_is_trained_in_batches(colours: Path, tmp_path: Path) -> None:
    model, out = small_classifier(tmp_path / "in.pt2"), tmp_path / "out.pt2"
    run = ["--decoder", "classification", "--epochs", "6", "--batch-size", "8", "--lr", "0.02", "--average", "0"]
    assert main(arguments(model, out, f"classes:{colours}", *run)) == 0
    source = load_network(str(out))
    assert source.description is not None
    assert source.description.provenance["training"]["test_scores"]["after"]["top1"] == 1.0
    assert source.labels == ("green", "red")
    taught = tmp_path / "taught.pt2"
    taught_by = ["--decoder", "classification", "--teacher", str(out), "--epochs", "1", "--batch-size", "8"]
    assert main(arguments(model, taught, f"classes:{colours}", *taught_by)) == 0


# --- killed, and in several processes ---------------------------------------------------------------------------------


def test_a_run_killed_in_the_middle_ends_with_the_same_weights(
    colours: Path, tmp_path: Path, fork_server: ForkServer
) -> None:
    model = small_classifier(tmp_path / "in.pt2")
    run = ["--decoder", "classification", "--epochs", "6", "--batch-size", "4", "--lr", "0.01"]
    data = f"classes:{colours}"
    assert main(arguments(model, tmp_path / "whole.pt2", data, *run)) == 0
    checkpoint = tmp_path / "run.ckpt"
    killed = arguments(model, tmp_path / "killed.pt2", data, *run, "--checkpoint", str(checkpoint))
    stopped = fork_server.run(killed_training.command("run.ckpt", "multi_dnn_ros.cli.main", killed), timeout=120)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    assert checkpoint.exists()
    assert not (tmp_path / "killed.pt2").exists()
    assert main(killed) == 0
    whole, resumed = (load_network(str(tmp_path / f"{name}.pt2")).module.state_dict() for name in ("whole", "killed"))
    assert weights_digest(whole) == weights_digest(resumed)


_TWO = """
import sys, torch
from pathlib import Path
from multi_dnn_ros.cli import network_arguments
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.training import distributed
sys.path.insert(0, {folder!r})
from test_retrain import learn
torch.set_num_threads(1)
out = Path({out!r})
with distributed.process_group("cpu"):
    assert distributed.total(torch.tensor([2.0, 3.0])).tolist() == [4.0, 6.0]
    network = learn()
    torch.save(network.state_dict(), out / f"rank{{distributed.rank()}}.pt")
    code = main({arguments!r})
sys.exit(code)
"""


def learn() -> nn.Module:
    """A few steps without random numbers: several processes together must compute what one computes."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    network.register_parameter("unused", nn.Parameter(torch.ones(2)))  # no loss depends on it
    network[0].bias.requires_grad_(False)
    generator = torch.Generator().manual_seed(2)
    image = torch.randint(0, 256, (27, 3, 8, 8), generator=generator, dtype=torch.uint8)
    # Batches of nine: two processes get four and five images of each.
    batches = FixedBatches({"image": image, "label": torch.arange(27) % 3}, 9, seed=3)
    schedule = Schedule(3, 0.05, optimizer="sgd", ema=0.9, precision="fp32")
    train(network, batches, ClassificationLoss(), lambda net: {"top1": 0.0}, schedule, main="top1")
    return network


def test_two_processes_learn_what_one_learns(colours: Path, tmp_path: Path, fork_server: ForkServer) -> None:
    """With the environment variables of torchrun."""
    out = tmp_path / "out.pt2"
    run = [
        "--decoder",
        "classification",
        "--epochs",
        "2",
        "--batch-size",
        "8",
        "--checkpoint",
        str(tmp_path / "c.ckpt"),
    ]
    command = arguments(small_classifier(tmp_path / "in.pt2"), out, f"classes:{colours}", *run)
    program = _TWO.format(folder=str(Path(__file__).parent), out=str(tmp_path), arguments=command)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        fork_server.popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    printed = "".join(output for output, _ in outputs)
    alone = learn().state_dict()
    for rank in range(2):
        together = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        for name, value in alone.items():
            torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-6)
    description = load_network(str(out)).description
    assert description is not None
    assert description.provenance["training"]["processes"] == 2
    assert printed.count("written to") == 1


# --- errors -----------------------------------------------------------------------------------------------------------


def test_wrong_combinations_are_one_line(colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = small_classifier(tmp_path / "in.pt2"), f"classes:{colours}"
    out = tmp_path / "out.pt2"
    out.write_bytes(b"the last good file")
    three = small_classifier(tmp_path / "three.pt2", classes=3)
    chosen = ["--decoder", "classification"]
    vgg, file = "torchvision:vgg11", tmp_path / "three.pt2"
    for code, message, command in [
        (2, "is not a writable folder", arguments(model, file / "out.pt2", data, *chosen)),
        (
            2,
            f"--checkpoint is {file}/c: {file} is no",
            arguments(model, out, data, *chosen, "--checkpoint", f"{file}/c"),
        ),
        (2, f"--report is {file}/retrain.json: {file} is no", arguments(model, out, data, "--report", str(file))),
        (2, "are both", arguments(model, out, data, *chosen, "--checkpoint", str(out))),
        (2, "--weights is for torchvision:<builder>", arguments(model, out, data, *chosen, "--weights", "random")),
        (2, "would have random weights", arguments(model, out, data, *chosen, "--weights", "random", "--teacher", vgg)),
        (2, "expected a .pt2 file", arguments(model, tmp_path / "out.safetensors", data, *chosen)),
        (1, "has 3 classes, data", arguments(three, out, data, *chosen)),
        (1, "returns [(2,)] for an image, the teacher", arguments(model, out, data, *chosen, "--teacher", str(three))),
        (1, "kind 'pictures'", arguments(model, out, f"pictures:{colours}", *chosen)),
        (1, "holds lanes; the network is for classes", arguments(model, out, f"lanes:{colours}", *chosen)),
        (1, "takes 16x16 only", arguments(model, out, data, *chosen, "--size", "32x32")),
        (1, "epoch 1: the loss is nan; lower lr", arguments(not_a_number(tmp_path / "nan.pt2"), out, data, *chosen)),
        (2, "builtin:lane is for lanes", ["evaluate", "builtin:object", "builtin:lane", "--data", data]),
    ]:
        assert main(command) == code, message
        error = capsys.readouterr().err.splitlines()[-1]
        assert message in error
        assert "unexpected" not in error
    assert out.read_bytes() == b"the last good file"


def test_a_checkpoint_of_another_loss_is_refused(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = tmp_path / "c.ckpt", tmp_path / "out.pt2"
    run = ["--decoder", "classification", "--epochs", "1", "--checkpoint", str(checkpoint)]
    command = arguments(small_classifier(tmp_path / "in.pt2"), out, f"classes:{colours}", *run)
    assert main(command) == 0
    description = load_network(str(out)).description
    assert description is not None
    assert description.provenance["training"]["loss"] == {"kind": "ClassificationLoss", "smoothing": 0.1}
    before = checkpoint.read_bytes()
    assert main([*command, "--label-smoothing", "0.2"]) == 1
    assert "loss.smoothing is 0.1 there, 0.2 now" in capsys.readouterr().err
    assert checkpoint.read_bytes() == before


def test_a_limit_scores_images_of_all_classes(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders list one class after another; the first images alone would show a useless network as perfect."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():
        network[2].weight.zero_()
        network[2].bias.copy_(torch.tensor([1.0, 0.0]))  # always the first class
    model, report = tmp_path / "first.pt2", tmp_path / "report"
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 16, 16),)), model)
    command = ["evaluate", str(model), "--decoder", "classification", "--data", f"classes:{colours}", "--device", "cpu"]
    for limit in ("2", "4"):
        assert main([*command, "--limit", limit, "--report", str(report)]) == 0
        assert f"Scored on the test part: classes:{colours} ({limit} images)." in capsys.readouterr().out
        (network_row,) = json.loads((report / "report.json").read_text())["networks"]
        assert network_row["scores"][f"classes:{colours}"]["top1"] == 0.5


def test_an_interrupted_evaluation_keeps_the_networks_before(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval()
    models, report = [str(tmp_path / f"{name}.pt2") for name in ("first", "second")], tmp_path / "report"
    for model in models:
        torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), model)
    read_data, calls = network_arguments.read_data, []

    def interrupted(args: argparse.Namespace, network: Trainable) -> list[Data]:
        calls.append(network.model)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read_data(args, network)

    monkeypatch.setattr("multi_dnn_ros.cli.evaluate.read_data", interrupted)
    options = ["--decoder", "classification", "--data", f"classes:{colours}", "--device", "cpu"]
    assert main(["evaluate", *models, *options, "--report", str(report)]) == 130
    assert calls == models
    rows = json.loads((report / "report.json").read_text())["networks"]
    assert [row["model"] for row in rows] == models[:1]


def test_evaluate_names_images_without_a_mask(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images, masks = (tmp_path / "val" / kind for kind in ("images", "masks"))
    for folder in (images, masks, tmp_path / "train"):
        folder.mkdir(parents=True)
    for name in ("a", "b"):
        cv2.imwrite(str(images / f"{name}.png"), np.zeros((96, 160, 3), np.uint8))
    cv2.imwrite(str(masks / "a.png"), np.zeros((96, 160), np.uint8))
    assert main(["evaluate", "builtin:lane", "builtin:lane", "--data", f"lanes:{tmp_path}", "--device", "cpu"]) == 0
    assert "1 images without a mask are left out: b.png" in caplog.text


def test_a_part_without_any_object_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images without objects are good for training and for thresholds, but have no average precision."""
    rng = np.random.default_rng(0)
    (tmp_path / "annotations").mkdir()
    for part, boxes in (("train", 4), ("val", 0)):
        (tmp_path / part).mkdir()
        for k in range(4):
            cv2.imwrite(str(tmp_path / part / f"{k}.png"), rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
        content = {
            "images": [{"id": k, "file_name": f"{k}.png", "width": 64, "height": 48} for k in range(4)],
            "categories": [{"id": 1, "name": "pedestrian"}],
            "annotations": [{"id": k, "image_id": k, "category_id": 1, "bbox": [8, 8, 16, 32]} for k in range(boxes)],
        }
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    assert main(arguments("builtin:pedestrian", tmp_path / "out.safetensors", f"coco:{tmp_path}")) == 1
    assert f"data 'coco:{tmp_path}', part test: no true box in 4 images" in capsys.readouterr().err


def test_a_checkpoint_of_another_network_is_refused(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, data = tmp_path / "c.ckpt", f"classes:{colours}"
    run = ["--decoder", "classification", "--epochs", "1", "--checkpoint", str(checkpoint)]
    assert main(arguments(small_classifier(tmp_path / "in.pt2"), tmp_path / "out.pt2", data, *run)) == 0
    before = checkpoint.read_bytes()
    other = nn.Sequential(nn.Flatten(), nn.Linear(768, 2)).eval()
    torch.export.save(torch.export.export(other, (torch.zeros(1, 3, 16, 16),)), tmp_path / "other.pt2")
    assert main(arguments(tmp_path / "other.pt2", tmp_path / "out.pt2", data, *run)) == 1
    assert f"{checkpoint}: checkpoint of another run: " in capsys.readouterr().err
    assert checkpoint.read_bytes() == before


def test_a_checkpoint_is_written_by_one_training_at_a_time(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, written = small_classifier(tmp_path / "in.pt2"), tmp_path / "run" / "state"
    run = ["--decoder", "classification", "--epochs", "1", "--batch-size", "8", "--checkpoint", str(written)]
    command = arguments(model, tmp_path / "out.pt2", f"classes:{colours}", *run)
    with lock_file(written.with_name("state.lock"), ""):
        assert main(command) == 1
    assert f"{written} is written by another training; end it first" in capsys.readouterr().err
    assert not written.exists()
    assert main(command) == 0
    assert written.exists()


def test_lines_about_epochs_count_from_1(colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line names the epoch that was kept by the same number as the line with its score."""
    model = small_classifier(tmp_path / "in.pt2")
    schedule = ["--decoder", "classification", "--epochs", "2", "--batch-size", "8"]
    command = arguments(model, tmp_path / "out.pt2", f"classes:{colours}", *schedule)
    assert main([option for option in command if option != "--quiet"]) == 0
    shown = capsys.readouterr()
    numbers = re.findall(r"^epoch=(\d+) ", f"{shown.out}\n{shown.err}", re.MULTILINE)
    assert numbers == ["1", "2"]


def test_a_network_without_a_loss_needs_a_teacher() -> None:
    """Here the grid head has no loss of its own."""
    source = load_network("builtin:object")
    student = make_trainable(source, "builtin:object")
    lossless = type(student)(**{**student.__dict__, "loss": None})

    class Data:
        name, task, labels = "x", "boxes", student.labels

    with pytest.raises(TrainingError, match="have no loss of their own; give a teacher"):
        retrain(lossless, [Data()], Schedule(1, 1e-3), batch_size=1, device=torch.device("cpu"))  # type: ignore[list-item]
    with pytest.raises(ModelError, match="a size is needed"):
        make_trainable(type(source)(nn.Identity(), None, "classification"), "x.pt2")


def test_a_teacher_may_be_on_the_device_of_an_earlier_run() -> None:
    """The student of the next run is read from its file, on the CPU."""

    def classifier(classes: int) -> Trainable:
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes)).eval()
        return make_trainable(Source(network, (8, 8), "classification"), f"{classes} classes")

    student, same, other = classifier(2), classifier(2), classifier(3)
    same.network.to("meta")
    other.network.to("meta")
    _loss(student, same, 0.5, torch.device("meta"), "fp32")
    with pytest.raises(TrainingError, match=r"2 classes returns \[\(2,\)\] for an image, the teacher 3 classes"):
        _loss(student, other, 0.5, torch.device("cpu"), "fp32")


@pytest.mark.parametrize(
    ("own", "difference"),
    [
        ({"bgr": True}, "the teacher a is for color bgr, b for color rgb: both must take the same input"),
        ({"fit": "letterbox"}, "the teacher a is for resize letterbox, b for resize stretch: both must take"),
        ({"mean": (0.5, 0.5, 0.5)}, r"the teacher a is for mean \[0.5, 0.5, 0.5\], b for mean \[0.0, 0.0, 0.0\]: both"),
        ({"pad": 0.5}, ""),  # without effect on stretched images
    ],
)
def test_a_teacher_takes_the_same_images(own: dict, difference: str) -> None:
    """A teacher of letterboxed images must not teach what stretched ones show."""
    teacher, student = (
        make_trainable(
            Source(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2)).eval(), (8, 8), "classification",
                   preprocess=preprocess),
            model,
        )
        for model, preprocess in (("a", own), ("b", {}))
    )  # fmt: skip
    with pytest.raises(TrainingError, match=difference) if difference else contextlib.nullcontext():
        _loss(student, teacher, 0.5, torch.device("cpu"), "fp32")


def test_a_classifier_sees_images_as_its_metadata_says() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)).eval()
    own = {"fit": "letterbox", "bgr": True, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "pad": 0.2}
    student = make_trainable(Source(network, (32, 32), "classification", preprocess=own), "net")
    image = torch.randint(0, 256, (20, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    framed = torch.from_numpy(student.framing(image.numpy()))
    expected = torch.from_numpy(Preprocess(32, 32, **own)(image.numpy()))
    torch.testing.assert_close(student.inputs(framed), expected)
    with pytest.raises(ModelError, match=r"net: mean = .*std = .*: must be finite, std above 0"):
        make_trainable(Source(network, (32, 32), "classification", preprocess={"std": (0.0, 1.0, 1.0)}), "net")


def test_framing_keeps_what_the_node_does() -> None:
    source = load_network("torchvision:fcos_resnet50_fpn", weights="random", num_classes=3)
    student = make_trainable(source, "fcos", size=(128, 96), labels=("no", "a", "b"))
    assert (student.framing.fit, student.framing.centered, student.framing.antialias) == ("letterbox", False, False)
    assert isinstance(student.framing, Preprocess)
    image = torch.randint(0, 256, (60, 100, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert student.decoder is not None
    expected = torch.from_numpy(student.decoder.preprocess(image.numpy()))
    framed = torch.from_numpy(student.framing(image.numpy()))
    inside = student.inputs(framed)[:, :, :76]  # below lies the padding
    torch.testing.assert_close(inside, expected[:, :, :76], rtol=1e-3, atol=1e-3)


def test_a_network_without_weights_is_scored_but_not_trained(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()  # three scores: the mean colours
    path, data = tmp_path / "mean.pt2", tmp_path / "data"
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    for part, brightness in (("train", 200), ("val", 220)):
        (data / part / "blue").mkdir(parents=True)
        cv2.imwrite(str(data / part / "blue" / "0.png"), np.full((16, 16, 3), (brightness, 0, 0), np.uint8))
        for name, target in (("green", "m_green"), ("red", "a_red")):
            (data / part / target).symlink_to(colours / part / name)
    options = [str(path), "--decoder", "classification", "--data", f"classes:{data}", "--device", "cpu"]
    assert main(["evaluate", *options]) == 0
    assert "top1" in capsys.readouterr().out
    assert main(["retrain", *options, "--output", str(tmp_path / "out.pt2")]) == 1
    assert "no weights that can be trained" in capsys.readouterr().err
