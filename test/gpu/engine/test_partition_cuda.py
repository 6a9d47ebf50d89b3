"""One batch over a GPU, shares of its SMs and the CPU."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.executor import NetworkRequest, random_images
from multi_dnn_ros.partition.torch_executor import TorchExecutor
from multi_dnn_ros.partition.unit_process import UnitFailure, UnitProcesses
from multi_dnn_ros.planning.batch_table import read_table
from multi_dnn_ros.planning.batch_units import parse_unit, parse_units

MODEL = ["torchvision:squeezenet1_1", "--size", "64x64"]


def measured_and_run(folder: Path, units: str, *, precision: str = "auto", batch: int = 12) -> dict:
    """The report of `partition run` after `partition profile`."""
    common = [*MODEL, "--units", units, "--precision", precision, "--tables", str(folder)]
    report = folder / "run.json"
    assert main(["partition", "profile", *common, "--max-batch", "8", "--samples", "5"]) == 0
    assert main(["partition", "run", *common, "--batch", str(batch), "--rounds", "3", "--report", str(report)]) == 0
    return json.loads(report.read_text())


def test_a_gpu_and_the_cpu_give_the_outputs_of_one_of_them(tmp_path: Path) -> None:
    report = measured_and_run(tmp_path, "cuda:0,cpu:1")
    assert not report["failures"]
    assert report["measured_ms"] > 0.0
    assert sum(report["plan"]["images"].values()) == 12
    table = read_table(tmp_path / "torchvision-squeezenet1_1" / "cuda-0.auto.json")
    for row in table.rows:
        assert min(row.input.p50, row.compute.p50, row.output.p50) > 0.0
        # Medians of sums are not sums of medians, but the launch of a network alone takes longer than they differ.
        assert row.total.p50 > row.input.p50 + row.compute.p50 + row.output.p50
    assert torch.cuda.get_device_name(0) in table.device


def test_a_slow_batch_does_not_delay_later_ones() -> None:
    """The first batch is slow; a unit sleeps until shortly before the expected end of a batch."""
    executor = TorchExecutor(parse_unit("cuda:0"), NetworkRequest("torchvision:squeezenet1_1", size=(64, 64)), "auto")
    (form,) = executor.prepare(4)
    images, outputs = random_images(executor.shape, 4), (np.zeros((4, *form.shape), form.dtype),)
    executor.attach(images, outputs)
    with torch.cuda.stream(torch.cuda.Stream()):  # keeps the GPU busy for about 50 ms, and with it the first batch
        matrix = torch.rand(8192, 8192, device="cuda")
        for _ in range(4):
            matrix @ matrix
    begin = time.perf_counter()
    executor.run(images, outputs)
    first_ms = 1e3 * (time.perf_counter() - begin)
    later = [executor.run(images, outputs).host_ms for _ in range(5)]
    assert statistics.median(later) < max(1.0, 0.05 * first_ms)


def test_shares_of_one_gpu_run_at_the_same_time(tmp_path: Path) -> None:
    problem = green_contexts.sms_problem(torch.device("cuda:0"), 16)
    if problem:
        pytest.skip(problem)
    # Not at fp16, for which some hundred kernels would be compiled and timed on each share: several minutes.
    report = measured_and_run(tmp_path, "cuda:0/16sms,cuda:0/8sms", batch=16)
    assert not report["failures"]
    first, second = report["rounds"][-1]
    assert first["begin_ms"] < second["end_ms"]
    assert second["begin_ms"] < first["end_ms"]


def test_two_gpus_share_a_batch(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs; PyTorch sees {torch.cuda.device_count()}")
    assert not measured_and_run(tmp_path, "cuda:0,cuda:1", precision="fp16")["failures"]


def test_gpu_memory_that_does_not_suffice_is_noted() -> None:
    with UnitProcesses(parse_units("cuda:0")) as processes:
        processes.open(NetworkRequest("torchvision:vgg16", size=(1024, 1024)), "auto")
        handle = processes.handles["cuda:0"]
        # Memory that this process holds, as another program would: few images suffice, while filling the whole GPU with
        # images that are made on the CPU would take minutes.
        free, _ = torch.cuda.mem_get_info(0)
        held = torch.empty(free - 2 * 1024**3, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(UnitFailure, match="ran out of memory") as told:
            # The results of the first layer alone are 64 channels in float32: 268 MB per image.
            handle.ask(messages.Prepare(16), messages.Prepared, 60.0)
        assert told.value.out_of_memory
        assert not told.value.lost
        del held
        torch.cuda.empty_cache()
        handle.ask(messages.Prepare(1), messages.Prepared, 60.0)
