"""One batch over a GPU and the CPU, and over two GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition.pool import OutOfMemory, UnitPool
from multi_dnn_ros.partition.tables import read_table, table_path
from multi_dnn_ros.partition.units import parse_units
from multi_dnn_ros.partition.worker import Network, NetworkRequest

MODEL = "torchvision:squeezenet1_1"


def run_report(folder: Path, units: str, precision: str) -> dict[str, Any]:
    """The report of `partition run --compare`, which fails for wrong outputs, after `partition profile`."""
    common = [MODEL, "--units", units, "--precision", precision, "--tables", str(folder), "--repeats", "3"]
    report = folder / "run.json"
    assert main(["partition", "profile", *common, "--size", "64x64", "--max-batch", "8"]) == 0
    assert main(["partition", "run", *common, "--batch", "8", "--compare", "--report", str(report)]) == 0
    content: dict[str, Any] = json.loads(report.read_text())
    return content


def test_a_gpu_and_the_cpu_give_the_outputs_of_one_of_them(tmp_path: Path) -> None:
    report = run_report(tmp_path, "cuda:0,cpu:1", "auto")
    assert len(report["subsets"]) == 3
    table = read_table(table_path(tmp_path, MODEL, "cuda:0", "auto"))
    assert torch.cuda.get_device_name(0) in table.device
    for row in table.rows:
        assert min(row.input_ms, row.compute_ms, row.output_ms) > 0.0
        assert row.total_ms > row.compute_ms


def test_two_gpus_share_a_batch(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs; PyTorch sees {torch.cuda.device_count()}")
    assert len(run_report(tmp_path, "cuda:0,cuda:1", "fp16")["subsets"]) == 3


def test_a_gpu_without_enough_memory_is_told_apart_and_goes_on() -> None:
    with UnitPool(parse_units("cuda:0"), NetworkRequest(MODEL, size=(1024, 1024))) as pool:
        free, _ = torch.cuda.mem_get_info(0)
        held = torch.empty(free - 2 * 1024**3, dtype=torch.uint8, device="cuda:0")  # as another program would
        with pytest.raises(OutOfMemory):  # the results of the first layer alone are 67 MB per image
            pool.ask(Network.prepare, {"cuda:0": (64,)})
        del held
        torch.cuda.empty_cache()
        assert pool.ask(Network.measure, {"cuda:0": (1, 1)})
