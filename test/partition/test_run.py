"""Measuring and running on real units: CPU processes with a tiny network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from batch_tables import linear

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition.measure import measure_unit
from multi_dnn_ros.partition.plan import Plan
from multi_dnn_ros.partition.pool import OutOfMemory, UnitFailure, UnitPool
from multi_dnn_ros.partition.run import BatchRunner, check_outputs
from multi_dnn_ros.partition.tables import BatchTable, read_table, table_path, write_table
from multi_dnn_ros.partition.units import parse_units
from multi_dnn_ros.partition.worker import Network, NetworkRequest

UNITS = "cpu:1,cpu"


@pytest.fixture(scope="module")
def pool(means: str, _forks: None) -> Iterator[UnitPool]:
    with UnitPool(parse_units(UNITS), NetworkRequest(means)) as opened:
        yield opened


def test_profiling_measures_every_size_and_continues(
    means: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["partition", "profile", means, "--units", "cpu:1", "--tables", str(tmp_path), "--repeats", "2"]
    assert main([*command, "--max-batch", "2"]) == 0
    path = table_path(tmp_path, means, "cpu:1", "auto")
    first = read_table(path)
    assert [(row.batch, row.samples) for row in first.rows] == [(1, 2), (2, 2)]
    assert (first.model, first.unit, first.shape, first.parameters) == (means, "cpu:1", (3, 8, 8), 3)
    assert "threads 1" in first.device
    assert all(row.total_ms >= row.compute_ms > 0.0 for row in first.rows)
    assert main([*command, "--max-batch", "3"]) == 0
    continued = read_table(path)
    assert continued.rows[:2] == first.rows
    assert [row.batch for row in continued.rows] == [1, 2, 3]
    assert str(path) in capsys.readouterr().out
    write_table(path, first.model_copy(update={"device": "another GPU"}))
    assert main([*command, "--max-batch", "3"]) == 1
    assert f"{path} has times of device 'another GPU'" in capsys.readouterr().err
    assert read_table(path).rows == first.rows


def test_a_size_that_does_not_fit_into_memory_is_noted_and_larger_ones_are_not_tried(
    means: str, tmp_path: Path
) -> None:
    (unit,) = parse_units("cpu:1")
    tried: list[str] = []

    def measure(sizes: list[int]) -> BatchTable:
        progress = lambda done, total, what: tried.append(what)  # noqa: E731
        return measure_unit(unit, NetworkRequest(means), sizes, 1, tmp_path, {}, progress)

    beyond = 10**12  # more than the address space
    table = measure([1, beyond, 2 * beyond])
    assert ([row.batch for row in table.rows], table.too_large) == ([1], beyond)
    assert read_table(table_path(tmp_path, means, "cpu:1", "auto")) == table
    assert measure([2 * beyond]) == table


def test_a_network_whose_outputs_are_not_finite_gets_no_times(
    logarithms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["partition", "profile", logarithms, "--units", "cpu:1", "--tables", str(tmp_path), "--max-batch", "2"]
    assert main(command) == 1
    assert "unit cpu:1: output 0 for 1 random images has NaN or infinite values" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_transfers_are_measured_without_the_network(logarithms: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--batch", "2", "--max-batch", "7", "--increment", "2"]
    assert main(["partition", "io", logarithms, "--units", "cpu:1", *sizes, "--repeats", "2"]) == 0
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[2:] == ["2", "4", "6"]
    assert main(["partition", "io", logarithms, "--units", "cpu:1", "--batch", "2", "--max-batch", "1"]) == 2


@pytest.mark.parametrize("images", [{"cpu:1": 4, "cpu": 3}, {"cpu:1": 1, "cpu": 6}, {"cpu:1": 0, "cpu": 7}])
def test_outputs_are_complete_and_in_the_order_of_the_inputs(pool: UnitPool, images: dict[str, int]) -> None:
    batch = torch.rand(7, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    runner = BatchRunner(pool, batch)
    done = runner.run(Plan(images, dict.fromkeys(images, 1.0)), rounds=3)
    torch.testing.assert_close(runner.outputs[0], batch.mean((2, 3)) * torch.tensor([1.0, 2.0, -3.0]))
    assert len(done.rounds) == 3
    for shares in done.rounds:
        assert {share.unit: share.images for share in shares} == {unit: n for unit, n in images.items() if n}
        assert all(0.0 < share.begin_ms < share.end_ms for share in shares)
        assert all(share.times.total_ms <= share.end_ms - share.begin_ms for share in shares)


def test_bad_inputs_of_a_run_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "in.npy", tmp_path / "out.npz"
    write_table(table_path(tmp_path, "torchvision:alexnet", "cpu:1", "auto"),
                linear("cpu:1", 1.0, 8).model_copy(update={"model": "torchvision:alexnet"}))  # fmt: skip
    np.save(file, np.zeros((2, 3, 8, 8), np.float32))
    command = ["partition", "run", "torchvision:alexnet", "--tables", str(tmp_path), "--output", str(output)]

    def error(code: int, *options: str, weights: str = "random") -> str:
        assert main([*command, *options, *(["--weights", weights] if weights else [])]) == code
        assert not output.exists()
        return capsys.readouterr().err

    assert "--output needs --weights for torchvision:alexnet" in error(2, "--batch", "2", weights="")
    assert "--batch or --input is needed" in error(2)
    assert "holds 2 images" in error(2, "--input", str(file), "--batch", "3")
    assert "100 images exceeds" in error(1, "--batch", "100")
    np.save(file, np.zeros((2, 3, 8, 4), np.float32))
    assert "holds float32 (2, 3, 8, 4); expected float32 (N, 3, 8, 8)" in error(1, "--input", str(file))
    file.write_bytes(b"")
    assert "cannot be read" in error(1, "--input", str(file))


def pid_of(network: Network) -> int:
    return os.getpid()


def raise_what_cannot_be_pickled(network: Network) -> None:
    class LocalError(Exception):
        pass

    raise LocalError("broken")


def run_out_of_memory(network: Network) -> None:
    torch.empty(10**15)


def test_errors_in_a_unit_name_it_and_leave_its_process_alive(pool: UnitPool) -> None:
    before = pool.ask(pid_of, {"cpu": ()})
    with pytest.raises(OutOfMemory, match="unit cpu ran out of memory"):
        pool.ask(run_out_of_memory, {"cpu": ()})
    with pytest.raises(UnitFailure, match="unit cpu:1: broken"):
        pool.ask(raise_what_cannot_be_pickled, {"cpu:1": ()})
    assert pool.ask(pid_of, {"cpu": ()}) == before


def test_outputs_that_differ_are_an_error() -> None:
    expected = torch.tensor([[1.0, -4.0]])
    check_outputs("cpu", (expected + 0.003,), (expected,), 1e-3)
    for wrong in (expected + 0.005, expected * float("nan"), expected * float("inf")):
        with pytest.raises(Exception, match="output 0 of cpu differs"):
            check_outputs("cpu", (wrong,), (expected,), 1e-3)


def test_a_network_whose_outputs_are_not_per_image_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Total(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.sum((0, 2, 3))

    path = tmp_path / "total.pt2"
    torch.export.save(torch.export.export(Total().eval(), (torch.zeros(1, 3, 8, 8),)), path)
    command = ["partition", "profile", str(path), "--units", "cpu:1", "--max-batch", "1", "--tables", str(tmp_path)]
    assert main(command) == 1
    assert "cannot be split by images" in capsys.readouterr().err
