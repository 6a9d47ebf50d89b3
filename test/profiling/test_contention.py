"""The table of layer times under load is written while it is measured, and continued."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from profiling_fakes import SHAPE, Small, limits, target

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.samples import COLUMNS, Load, Sample, read_samples, write_samples
from multi_dnn_ros.profiling.contention import loads_of, measure_contention
from multi_dnn_ros.profiling.contention_table import open_table
from multi_dnn_ros.profiling.network import Network

LOADS = loads_of(("compute", "memory"), (0, 1, 2))
WAIT_S = 120.0


class Killed(Exception):
    """Stands for the end of the process."""


class Fake:
    """Loads without threads, and layer times that count the calls. ends_in: the block in which the process ends."""

    def __init__(self, ends_in: int = 10**6) -> None:
        self.blocks: list[Load] = []
        self.progress: list[tuple[int, int]] = []
        self._ends_in = ends_in

    @contextlib.contextmanager
    def background(self, load: Load, *_: Any) -> Iterator[None]:
        if len(self.blocks) == self._ends_in:
            raise Killed
        self.blocks.append(load)
        yield

    def timed(self, load: Load, layers: int) -> list[list[float]]:
        return [[1.0 + load.level] * layers]

    def measure(self, path: Path, *, networks: tuple[int, ...] = (4, 8), rounds: int = 4, **table: Any) -> list[Sample]:
        with open_table(path, **{"versions": "torch 2", "load_network": "small", **table}) as rows:
            return measure_contention(
                [Network(f"small {channels}", Small(channels), SHAPE) for channels in networks],
                target(rounds=rounds), limits(), LOADS, table=rows, background=self.background, timed=self.timed,
                progress=lambda done, total: self.progress.append((done, total)),
            )  # fmt: skip


@pytest.mark.parametrize("ends_in", range(0, 4 * len(LOADS), 3))
def test_a_killed_measurement_continues_with_what_is_missing(tmp_path: Path, ends_in: int) -> None:
    path = tmp_path / "out" / "samples.csv"
    first, second = Fake(ends_in), Fake()
    with pytest.raises(Killed):
        first.measure(path)
    kept = read_samples(path) if path.exists() else []
    measured = {(row.model, row.load) for row in kept}
    by_network = (first.blocks[: 2 * len(LOADS)], first.blocks[2 * len(LOADS) :])
    assert len(measured) == sum(blocks.count(load) == 2 for blocks in by_network for load in LOADS)
    rows = second.measure(path)
    assert len(second.blocks) == 2 * (2 * len(LOADS) - len(measured))
    assert second.progress[0] == (0, len(second.blocks))
    assert second.progress[-1] == (len(second.blocks), len(second.blocks))
    assert len(rows) == len(read_samples(path)) == len({(row.model, row.layer, row.load) for row in rows})
    assert {(row.model, row.load) for row in rows} == {(f"small {n}", load) for n in (4, 8) for load in LOADS}
    assert {row.rounds for row in rows} == {4}


def test_only_what_is_new_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    Fake().measure(path, networks=(4,))
    text = path.read_text()
    again = Fake()
    again.measure(path, networks=(4,), rounds=2)  # fewer rounds than the table has
    assert (again.blocks, path.read_text()) == ([], text)
    more = Fake()
    more.measure(path, networks=(4,), rounds=8)
    assert len(more.blocks) == 2 * len(LOADS)
    assert {row.rounds for row in read_samples(path)} == {8}
    replaced = Fake(2 * len(LOADS))
    with pytest.raises(Killed):
        replaced.measure(path, networks=(8, 4), replace=True)
    assert {row.model for row in read_samples(path)} == {"small 8"}


def test_rows_that_would_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    Fake().measure(path, networks=(4,))
    with pytest.raises(ProfileError, match=r"has small 4 measured by torch 2, not torch 3; start a new table with"):
        Fake().measure(path, networks=(4,), versions="torch 3")
    Fake().measure(path, networks=(4,), load_network="other")  # no load of kind dnn
    path.write_text(path.read_text().replace(",compute,", ",dnn,"))
    with open_table(path, "torch 2", "other") as table:
        dnn = next(row for row in table.rows if row.load.kind == "dnn")
        with pytest.raises(ProfileError, match="has small 4 measured while small was the load, not other; start a new"):
            table.has(dnn.model, dnn.setting, dnn.load, 4)
        with pytest.raises(CommandError, match=r"samples.csv is being measured by another command"):
            Fake().measure(path)
    renamed = tmp_path / "renamed.csv"
    Fake().measure(renamed, networks=(8,))
    renamed.write_text(renamed.read_text().replace("small 8", "small 4"))
    with pytest.raises(ProfileError, match=r"renamed.csv has layers of another small 4: .* --batch was another; start"):
        Fake().measure(renamed, networks=(4,))


def test_tables_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = Fake().measure(path, networks=(4,))
    write_samples(path, rows)
    lines = [line.rsplit(",", 2)[0] for line in path.read_text().splitlines()]
    assert list(COLUMNS)[-2:] == ["versions", "load_network"]
    path.write_text("\n".join(lines) + "\n")
    assert {row.versions for row in read_samples(path)} == {""}
    with pytest.raises(ProfileError, match="measured by unknown versions, not torch 2"):
        Fake().measure(path, networks=(4,))


def test_the_command_keeps_what_it_measured_when_it_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = torch.export.export(Small(), (torch.rand(1, 3, 8, 8),))
    torch.export.save(module, tmp_path / "small.pt2")
    table = tmp_path / "samples.csv"
    options = ["--device", "cpu", "--backend", "eager", "--loads", "compute", "--levels", "0,1,2"]
    files = [str(tmp_path / "small.pt2"), "--output", str(table), "--limits", str(tmp_path / "limits")]
    arguments = ["profile", "contention", *files, *options]
    process = subprocess.Popen([sys.executable, "-m", "multi_dnn_ros.cli.main", *arguments, "--repeats", "400"])
    try:
        deadline = time.monotonic() + WAIT_S
        while not table.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait(WAIT_S)
    kept = read_samples(table)
    assert {row.rounds for row in kept} == {400}
    assert main([*arguments, "--repeats", "4"]) == 0
    text = capsys.readouterr().out
    assert f"layer times under 3 conditions, {len(kept)} of them from an earlier run; written to" in text
    assert set(kept) <= set(read_samples(table))
