"""Offline commands on tiny inputs: the files that they write, what these are worth, and exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
import torch
import yaml
from command import (
    detector,
    multi_dnn,
    report_of,
    run_commands,
    started,
    succeed,
    values_of,
    wait_until,
    write_classes,
    write_parameters,
    write_pictures,
)
from harness import LIMIT_S
from networks import write_pt2
from torch import nn

pytestmark = pytest.mark.usefixtures("own_cache")


def test_decompose_and_evaluate(tmp_path: Path) -> None:
    """Fewer MACs as asked for, nearly the same scores on generated roads, and reports of both."""
    small = tmp_path / "small.safetensors"
    options = ["--ranks", "budget", "--macs-cut", "0.4", "--output", small, "--report", tmp_path / "decomposed"]
    done = succeed("decompose", "builtin:object", *options)
    cut = re.search(r"MACs.*-(\d+(\.\d+)?) ?%", done.stdout)
    assert cut is not None
    assert float(cut[1]) == pytest.approx(40, abs=2)
    assert report_of(tmp_path / "decomposed")["macs"]["cut"] == pytest.approx(0.4, abs=0.02)
    options = ["--data", f"road:{tmp_path / 'road'}", "--scenes", "12", "--limit", "6"]
    succeed("evaluate", "builtin:object", small, *options, "--report", tmp_path / "scores")
    original, decomposed = values_of(report_of(tmp_path / "scores"), "map50")
    assert original > 0.7
    assert decomposed == pytest.approx(original, abs=0.2)


def test_retrain_learns(tmp_path: Path) -> None:
    """A classifier with random weights tells two colours apart after two epochs; the file holds what was learnt."""
    output, data = tmp_path / "trained.safetensors", write_classes(tmp_path / "classes")
    succeed(
        "retrain", "torchvision:squeezenet1_1", "--weights", "random", "--num-classes", "2", "--size", "32x32",
        "--data", data, "--epochs", "2", "--batch-size", "16", "--output", output, "--report", tmp_path / "report",
        "--checkpoint", tmp_path / "run.ckpt",
    )  # fmt: skip
    assert report_of(tmp_path / "report")["training"]["test_scores"]["after"]["top1"] == pytest.approx(1)
    succeed("evaluate", output, "--data", data, "--report", tmp_path / "scores")
    assert values_of(report_of(tmp_path / "scores"), "top1") == [pytest.approx(1)]


def test_build_fills_the_caches(own_cache: Path, tmp_path: Path) -> None:
    file = write_parameters(tmp_path / "robot.yaml", {"object": detector(write_pt2(tmp_path / "network.pt2"))})
    summary = tmp_path / "summary.json"
    done = succeed("build", file, "--output", summary)
    assert "object" in done.stdout
    assert "object" in json.loads(summary.read_text())["dnns"]
    assert any(file.is_file() for file in (own_cache / "multi_dnn_ros").rglob("*"))


PICTURES = np.random.default_rng(0).integers(0, 256, (3, 96, 128, 3), dtype=np.uint8)


def write_odd_folder(folder: Path, suffix: str = ".jpg", first: int = 0) -> Path:
    """Images, what a Mac writes beside the first one and beside a recording, and a folder with an image's suffix."""
    write_pictures(folder, PICTURES, suffix, first)
    for name in (f"._{first}{suffix}", "._drive.mcap"):
        (folder / name).write_bytes(b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(3000))
    (folder / f"sub{suffix}").mkdir()
    return folder


def test_the_camera_names_what_it_cannot_read_and_publishes_the_rest(tmp_path: Path) -> None:
    folder = write_odd_folder(tmp_path / "images")
    (folder / "lost.jpg").symlink_to(folder / "nowhere")
    whole = (folder / "0.jpg").read_bytes()
    (folder / "torn.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "x0.jpg").touch()
    done = run_commands({"some": ["camera", folder, "--rate", "50"], "none": ["camera", tmp_path / "damaged"]})
    assert done["some"].returncode == 0, done["some"].stderr
    assert "published 3 frames" in done["some"].stdout
    for word in ("sub", "lost", "torn"):
        assert f"{word}.jpg" in done["some"].stderr
    assert "._0" not in done["some"].stderr
    assert done["none"].returncode == 1
    assert "x0.jpg" in done["none"].stderr


def test_scoring_leaves_out_hidden_files_and_names_a_dangling_link(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "val", "test")):
        for kind, suffix in (("images", ".jpg"), ("masks", ".png")):
            write_odd_folder(tmp_path / part / kind, suffix, 3 * number)
    data = ("--data", f"lanes:{tmp_path}")
    done = succeed("evaluate", "builtin:lane", *data)
    assert "._" not in done.stderr
    assert "sub.jpg" in done.stderr
    image = tmp_path / "test" / "images" / "8.jpg"
    image.unlink()
    image.symlink_to(tmp_path / "nowhere")
    done = multi_dnn("evaluate", "builtin:lane", *data)
    assert done.returncode == 1, done.stderr
    assert image.name in done.stderr.strip().splitlines()[-1]


CPU = ("--device", "cpu")


def small_detector(path: Path, channels: int) -> Path:
    """An exported network of three layers with the outputs of decoder yolo, for the role object."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, 6, 1), nn.Flatten(2))
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 32, 32),)), path)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_layers_of_a_network(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--backend", "eager", "--jobs", "3", "--cut", "measured", "--repeats", "3", "--output", out)
    assert "sum of the layers" in succeed("profile", "layers", "builtin:lane", *CPU, *options).stdout
    assert sorted(path.name for path in out.iterdir()) == ["layers.csv", "profile.json", "roofline.png"]
    report = report_of(out)
    layers = report["layers"]
    assert len(report["jobs_ms"]) == 3
    assert [row["layer"] for row in rows_of(out / "layers.csv")] == [layer["layer"] for layer in layers]
    assert {layer["job"] for layer in layers} == {0, 1, 2}
    assert sum(layer["ms"] for layer in layers) == pytest.approx(report["sum_of_layers_ms"])
    assert report["whole_ms"]["p50"] > 0
    for layer in layers:
        assert (layer["macs"] > 0) == ("convolution" in layer["kind"] or layer["kind"] == "linear")


def test_from_layer_times_under_load_to_whether_a_dnn_fits(tmp_path: Path) -> None:
    """No command refuses what an earlier one has written."""
    models = [small_detector(tmp_path / f"small{channels}.pt2", channels) for channels in (4, 8)]
    table, learnt = tmp_path / "samples.csv", tmp_path / "learnt"
    options = ("--backend", "eager", "--repeats", "3", "--levels", "0,1")
    succeed("profile", "contention", *models, "--output", table, *CPU, *options)
    loads = {("none", "0"), ("compute", "1"), ("memory", "1"), ("dnn", "1")}
    assert {(row["load_kind"], row["load_level"]) for row in rows_of(table)} == loads
    assert len(rows_of(table)) == 2 * 3 * 4
    assert "| networks, under load" in succeed("profile", "learn", table, "--output", learnt).stdout
    assert {"linear", "forest"} <= report_of(learnt / "learnt.json")["median_absolute_errors"][0]["layer"].keys()

    dnn = {"model": str(models[1]), "decoder": "yolo", "labels": ["car", "truck"], "backend": "eager", "jobs": 1}
    file = write_parameters(tmp_path / "robot.yaml", {"object": dnn}, device="cpu", workers=2)
    options = ("--params-file", file, "--rate", "front=1", "--predictor", learnt / "predictor.json")
    printed = succeed("profile", "fit", *options).stdout
    assert "object" in printed
    assert "measured, because" not in printed


def test_layers_of_a_distributed_training_step(tmp_path: Path) -> None:
    options = ("--processes", "2", "--size", "32x32", "--batch", "2", "--repeats", "2", "--bucket-mib", "0.001")
    done = succeed("profile", "training", "torchvision:squeezenet1_1", *CPU, *options, "--output", tmp_path)
    assert "link between 2 processes" in done.stdout
    report = report_of(tmp_path / "training.json")
    layers = report["layers"]
    assert [row["layer"] for row in rows_of(tmp_path / "layers.csv")] == [layer["layer"] for layer in layers]
    convolutions = [layer for layer in layers if layer["kind"] == "Conv2d"]
    assert len(convolutions) == 26
    for layer in convolutions:
        assert min(layer["forward_ms"], layer["backward_ms"], layer["all_reduce_ms"]) > 0.0
        assert layer["backward_flops"] == (1 if layer is convolutions[0] else 2) * layer["forward_flops"] > 0
        assert layer["gradient_bytes"] == 4 * layer["parameters"]
    assert report["processes"] == 2
    assert report["messages"] > 20
    total = sum(layer["forward_ms"] + layer["backward_ms"] for layer in layers)
    # Medians of parts and of the whole differ a little.
    assert report["sum_ms"] == pytest.approx(total + report["optimizer_ms"] + report["exposed_ms"], rel=0.5)


class Means(nn.Module):
    """(N, 3, 8, 8) -> (N, 3): the mean of each channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, net.pt2, and its tables on two units, which take 1 ms and 2 ms per image by them."""
    folder: Path = tmp_path_factory.mktemp("partition")
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(Means(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, folder / "net.pt2")
    options = ("--units", "cpu:1,cpu", "--tables", "tables", "--repeats", "2", "--max-batch", "6")
    succeed("partition", "profile", "net.pt2", *options, folder=folder)
    tables = list((folder / "tables").rglob("*.json"))
    assert len(tables) == 2
    for path in tables:
        content = json.loads(path.read_text())
        assert [row["batch"] for row in content["rows"]] == [1, 2, 3, 4, 5, 6]
        for row in content["rows"]:
            row["total_ms"] = row["batch"] * (1.0 if content["unit"] == "cpu:1" else 2.0)
        path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("search", ["exact", "greedy"])
def test_a_batch_is_divided_by_the_tables(search: str, folder: Path, tmp_path: Path) -> None:
    options = ("--tables", "tables", "--search", search, "--batch", "6", "--report", tmp_path / "plan.json")
    succeed("partition", "plan", "net.pt2", *options, folder=folder)
    report = report_of(tmp_path / "plan.json")
    images, unit_ms = {"cpu:1": 4, "cpu": 2}, {"cpu:1": 4, "cpu": 4}
    assert report["plan"] == {"images": images, "unit_ms": unit_ms, "predicted_ms": 4}
    assert [each["predicted_ms"] for each in report["subsets"]] == [6, 12, 4]


def test_a_run_writes_all_outputs_in_order_and_times_of_every_subset(folder: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((6, 3, 8, 8), np.float32)
    np.save(tmp_path / "in.npy", images)
    files = ("--input", tmp_path / "in.npy", "--output", tmp_path / "out.npz", "--report", tmp_path / "run.json")
    options = ("--tables", "tables", "--repeats", "2", "--compare")
    succeed("partition", "run", "net.pt2", *options, *files, folder=folder)
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output_0"], images.mean((2, 3)), rtol=1e-4)
    report = report_of(tmp_path / "run.json")
    assert report["run"]["images"] == {"cpu:1": 4, "cpu": 2}
    assert len(report["subsets"]) == 3
    assert all(each["measured_ms"] > 0 for each in report["subsets"])


FLEET = ("jobs.yaml", "--units", "2", "--threads", "1", "--output", "out.json")


def write_jobs(folder: Path, *jobs: dict[str, Any]) -> list[Path]:
    """The folders of the jobs."""
    common = {
        "model": "torchvision:squeezenet1_1", "weights": "random", "num_classes": 2, "size": "32x32",
        "data": write_classes(folder / "images"), "global_batch": 20, "optimizer": "sgd", "lr": 0.001,
        "checkpoint_every_s": 0.2,
    }  # fmt: skip
    (folder / "jobs.yaml").write_text(yaml.safe_dump({"period_s": 2, "jobs": [{**common, **job} for job in jobs]}))
    return [folder / "jobs.fleet" / job["name"] for job in jobs]


def training_processes(command: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(command.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "JobWorker" in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.long
@pytest.mark.timeout(int(4 * LIMIT_S))
def test_a_killed_process_is_replaced_and_an_interrupted_run_continues(tmp_path: Path) -> None:
    """One of the jobs fails, and is reported."""
    long, short, _ = write_jobs(
        tmp_path, {"name": "long", "steps": 150}, {"name": "short", "steps": 120},
        {"name": "bad", "steps": 10, "data": "classes:missing"},
    )  # fmt: skip
    log, checkpoints = tmp_path / "log", [folder / "checkpoint.pt" for folder in (long, short)]
    with started(log, "fleet", *FLEET) as command:
        wait_until(lambda: all(path.exists() for path in checkpoints), command)
        training_processes(command)[0].send_signal(signal.SIGKILL)
        wait_until(lambda: "ended unexpectedly; it continues from its last checkpoint" in log.read_text(), command)
        replaced = time.time()
        wait_until(lambda: all(path.stat().st_mtime > replaced for path in checkpoints), command)
        os.killpg(command.pid, signal.SIGINT)  # as Ctrl-C does
        assert command.wait(LIMIT_S) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    (before,) = report_of(tmp_path / "out.json")["policies"].values()
    with started(log, "fleet", *FLEET) as command:
        assert command.wait(2 * LIMIT_S) == 1, log.read_text()
    (after,) = report_of(tmp_path / "out.json")["policies"].values()
    found = {name: (job["status"], job["done"]) for name, job in after["jobs"].items()}
    assert found == {"long": ("finished", 150), "short": ("finished", 120), "bad": ("failed", 0)}
    assert "missing" in after["jobs"]["bad"]["text"]
    for folder in (long, short):
        job, earlier = after["jobs"][folder.name], before["jobs"][folder.name]["losses"]
        assert job["losses"][: len(earlier)] == earlier != [], "these steps were not repeated"
        assert (folder / f"{folder.name}.safetensors").is_file()
        assert 0.0 <= job["scores"]["top1"] <= 1.0
        assert job["slow_down"] > 0.0
    assert cv2.imread(str(tmp_path / "out.png")) is not None
