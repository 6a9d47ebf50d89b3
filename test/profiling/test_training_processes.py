"""Distributed training on two gloo processes: equal gradients, the command, and processes that fail."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy.typing as npt
import psutil
import pytest
import torch
import training_processes
from torch.nn import functional as F

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.profiling.training.processes import run_processes

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None) -> None:
    """Fork the processes of a group, except in test_processes_end_with_their_parent, which starts new interpreters."""


def quiet(done: int, total: int) -> None:
    """No progress."""


def children() -> list[psutil.Process]:
    """Running Python processes that this process has started, without multiprocessing's resource tracker."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if each.is_running() and "spawn_main" in " ".join(each.cmdline())]


def test_gradients_are_those_of_one_process_on_the_whole_batch() -> None:
    found: dict[str, list[npt.NDArray[Any]]] = run_processes(training_processes.gradients, None, 2, CPU, quiet)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        network, batch = training_processes.Branches().to(dtype), training_processes.batch_of(dtype)
        F.cross_entropy(network(batch.images), batch.labels % 5).backward()
        order = [parameter for module in network.modules() for parameter in module.parameters(recurse=False)]
        expected = [parameter.grad for parameter in order]
        for method in ("layers", "ddp"):
            own = found[f"{dtype} {method}"]
            assert len(own) == len(expected)
            for ours, theirs in zip(own, expected, strict=True):
                assert theirs is not None
                assert float((torch.from_numpy(ours) - theirs).norm() / theirs.norm()) < tolerance, (dtype, method)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "process 1 of 2 was killed by SIGKILL (the kernel does this when memory runs out)"),
        ("error", "process 1 of 2 failed: TypeError: unexpected"),
    ],
)
def test_a_process_that_fails_ends_all_with_one_line(how: str, message: str) -> None:
    with pytest.raises(CommandError) as error:
        run_processes(training_processes.fails, how, 2, CPU, quiet)
    assert str(error.value) == message
    assert children() == []


@pytest.mark.long  # one process in test/common/test_parent_watch.py
def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import sys, torch, training_processes\n"
        "from multi_dnn_ros.profiling.training.processes import run_processes\n"
        "if __name__ == '__main__':\n"
        f"    run_processes(training_processes.lives, {str(tmp_path)!r}, 2, torch.device('cpu'), lambda *_: None)\n"
    )
    (tmp_path / "parent.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], env=environment)
    try:
        deadline = time.monotonic() + 90
        files = [tmp_path / "0", tmp_path / "1"]
        while not all(file.exists() and file.read_text() for file in files):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        found = [psutil.Process(int(file.read_text())) for file in files]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert psutil.wait_procs(found, timeout=30)[1] == []


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one run of the command."""
    folder = tmp_path_factory.mktemp("training")
    status = main(
        ["profile", "training", "torchvision:squeezenet1_1", "--num-classes", "5", "--size", "32x32", "--processes",
         "2", "--device", "cpu", "--batch", "2", "--repeats", "2", "--threads", "1", "--sweep-to", "1", "--predict-to",
         "16", "--per-host", "8", "--host-link", "30:1", "--limits", str(folder / "limits.json"),
         "--output", str(folder / "out")]
    )  # fmt: skip
    assert status == 0
    return folder / "out"


def test_the_command_writes_layers_methods_and_predictions(profile: Path) -> None:
    assert sorted(path.name for path in profile.iterdir()) == [
        "layers.csv", "scaling.png", "timeline.png", "training.json",
    ]  # fmt: skip
    content: dict[str, Any] = json.loads((profile / "training.json").read_text())
    assert list(content["methods"]) == ["alone", "layers", "ddp"]
    layers = content["layers"]
    own = [layer for layer in layers if layer["gradient_bytes"]]
    assert content["methods"]["layers"]["messages"] == len(own) > content["methods"]["ddp"]["messages"] > 0
    assert content["methods"]["alone"]["messages"] == 0
    assert all(layer["all_reduce"]["ms"] > 0 and layer["in_flight_ms"] > 0 for layer in own)
    assert all(layer["forward"]["flops"] for layer in layers if layer["kind"] == "Conv2d")
    total = sum(
        sum(layer[phase]["ms"] for phase in ("forward", "backward", "optimizer"))
        + layer["launch_ms"]
        + layer["exposed_ms"]
        for layer in layers
    )
    assert total == pytest.approx(content["methods"]["layers"]["sum_ms"], rel=1e-6)
    assert [of["processes"] for of in content["scaling_predicted"]] == [1, 2, 4, 8, 16]
    assert content["scaling_predicted"][-1]["hosts"] == 2
    assert content["link"]["bytes_per_s"] > 0
    with (profile / "layers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == [layer["name"] for layer in layers]
    assert [int(row["forward_flops"]) for row in rows] == [layer["forward"]["flops"] for layer in layers]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["builtin:nothing", "--processes", "1"], 1, "builtin:nothing"),
        (["builtin:lane", "--per-host", "8"], 2, "give --host-link US:GB/S"),
        (["builtin:lane", "--sweep-to", "0.001"], 2, "--sweep-to is 0.001 MiB"),
    ],
)
def test_bad_options(options: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "training", *options, "--device", "cpu"]) == status
    assert said in capsys.readouterr().err


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(["profile", "training", "builtin:lane", "--gpus", "2", "--device", "cuda"]) == 2
    assert "--processes is 2, but PyTorch sees 1 GPUs here" in capsys.readouterr().err
