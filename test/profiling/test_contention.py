"""The table of layer times under load is written while it is measured, and continued; background loads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from profiling_fakes import CPU, LAYERS, SHAPE, Small, chain_of, machine, target

from multi_dnn_ros.profiling.contention import loads_of, measure_contention
from multi_dnn_ros.profiling.loads import background_load
from multi_dnn_ros.profiling.network import Network
from multi_dnn_ros.profiling.predictor import Load, ProfileError
from multi_dnn_ros.profiling.samples import Machine, Sample, read_samples, write_rows

LOADS = loads_of(("compute", "memory"), (0, 1, 2))


class Killed(Exception):
    """Stands for the end of the process."""


class Fake:
    """Loads without threads. ends_in: number of the load in which the process ends."""

    def __init__(self, ends_in: int = 10**6) -> None:
        self.loads: list[Load] = []
        self.progress: list[tuple[int, int]] = []
        self._ends_in = ends_in

    @contextlib.contextmanager
    def background(self, load: Load, *_: Any) -> Iterator[None]:
        if len(self.loads) == self._ends_in:
            raise Killed
        self.loads.append(load)
        yield

    def measure(self, path: Path, networks: tuple[int, ...] = (4, 8), on: Machine | None = None) -> list[Sample]:
        found = [Network(f"small {channels}", Small(channels), SHAPE) for channels in networks]
        return measure_contention(
            found, target(), on or machine(), LOADS, path, load_network=found[0], background=self.background,
            chain=chain_of([1.0] * LAYERS), progress=lambda done, total: self.progress.append((done, total)),
        )  # fmt: skip


@pytest.mark.parametrize("ends_in", [0, 1, 4, 7])
def test_a_killed_measurement_continues_with_what_is_missing(tmp_path: Path, ends_in: int) -> None:
    path = tmp_path / "out" / "samples.csv"
    with pytest.raises(Killed):
        Fake(ends_in).measure(path)
    kept = read_samples(path) if path.exists() else []
    assert len({(row.model, row.load) for row in kept}) == ends_in
    second = Fake()
    rows = second.measure(path)
    assert len(second.loads) == 2 * len(LOADS) - ends_in
    assert (second.progress[0], second.progress[-1]) == ((0, len(second.loads)), (len(second.loads),) * 2)
    assert rows == read_samples(path)
    assert {(row.model, row.load) for row in rows} == {(f"small {n}", load) for n in (4, 8) for load in LOADS}
    assert len(rows) == 2 * len(LOADS) * LAYERS
    third = Fake()
    third.measure(path)
    assert third.loads == []


def test_rows_that_would_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    Fake().measure(path, networks=(4,))
    with pytest.raises(ProfileError, match=r"samples.csv was measured on '.*torch 2'; this is '.*torch 3'; name anot"):
        Fake().measure(path, on=machine(versions="torch 3"))
    path.write_text(path.read_text().replace("small 4", "small 8"))
    with pytest.raises(ProfileError, match=r"samples.csv has layers of another small 8; name another file"):
        Fake().measure(path, networks=(8,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.splitlines()[0] + "\n", "the table is empty"),
        (lambda text: text.replace("model,", "mode,", 1), "line 2, model: Field required"),
        (lambda text: text.replace("element-wise", "wizardry", 1), "line 3, kind: Input should be 'convolution'"),
        (lambda text: text.replace(",none,0,", ",none,lots,", 1), "line 2, load_level: Input should be a valid int"),
        (lambda text: text.replace(",none,0,", ",none,0,-", 1), "line 2, ms: Input should be greater than or equal"),
        (lambda text: "\ufffd" * 100, "the table is empty"),
    ],
)
def test_errors_in_a_table_name_line_and_column(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = [row for row in Fake().measure(path, networks=(4,)) if row.load == Load()]
    write_rows(path, [row.model_dump() for row in rows])
    path.write_text(change(path.read_text()))
    with pytest.raises(ProfileError, match=f"samples.csv: .*{message}"):
        read_samples(path)
    with pytest.raises(ProfileError, match=r"none\.csv: cannot be read"):
        read_samples(tmp_path / "none.csv")


def test_a_background_load_works_and_ends() -> None:
    threads = torch.get_num_threads()
    calls: list[int] = []

    def network():
        number = len(calls)
        calls.append(0)

        def infer() -> None:
            calls[number] += 1

        return infer

    for kind in ("compute", "memory", "dnn"):
        with background_load(Load(kind, 2), CPU, network):
            assert torch.get_num_threads() == threads
    assert all(calls)
    assert len(calls) == 2

    def fails() -> None:
        raise RuntimeError("sofa")

    with (
        pytest.raises(ProfileError, match="a background load failed: sofa"),
        background_load(Load("dnn", 2), CPU, lambda: fails),
    ):
        pytest.fail("the load did not start")
