"""Tables of measured times: which sizes, times between them, files, and `partition table`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from batch_tables import linear, table
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition.tables import TableError, read_table, sizes_to_measure, table_path, write_table

TIMES = st.dictionaries(st.integers(1, 300), st.floats(0.001, 1e6), min_size=1, max_size=8)


def test_sizes_are_powers_of_two_and_their_neighbours() -> None:
    assert sizes_to_measure(1) == (1,)
    assert sizes_to_measure(6) == (1, 2, 3, 4, 5, 6)
    assert sizes_to_measure(20) == (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20)
    assert sizes_to_measure(32)[-2:] == (31, 32)


@given(TIMES)
def test_times_are_the_measured_ones_and_between_their_neighbours(total_ms: dict[int, float]) -> None:
    found = table("cpu", total_ms).times_ms(400)
    sizes = sorted(total_ms)
    assert found[0] == 0.0
    assert [found[size] for size in sizes] == pytest.approx([total_ms[size] for size in sizes])
    assert (found[1 : sizes[0]] == found[sizes[0]]).all()
    assert np.isinf(found[sizes[-1] + 1 :]).all()
    for low, high in pairwise(sizes):
        ends = sorted((found[low], found[high]))
        assert ((found[low:high] >= ends[0] - 1e-9) & (found[low:high] <= ends[1] + 1e-9)).all()


@given(TIMES, st.integers(0, 9))
def test_a_written_table_is_read_unchanged(tmp_path_factory: pytest.TempPathFactory, total_ms, too_large: int) -> None:
    path = tmp_path_factory.getbasetemp() / "written.json"
    written = table("cuda:0", total_ms, too_large=too_large, provenance={"command": "c"})
    write_table(path, written)
    assert read_table(path) == written


@given(st.data())
def test_a_damaged_file_is_refused_with_its_name(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    write_table(path, linear("cpu", 1.0, 8))
    content = path.read_bytes().rstrip()
    damage = data.draw(st.one_of(
        st.integers(0, len(content) - 1).map(lambda size: content[:size]),
        st.sampled_from([b"[]", b"null", b"\xff\xfe", content.replace(b"times 2", b"times 1")]),
        st.sampled_from([b"-1.0", b"NaN", b'"x"', b"1e999", b"0.0"]).map(lambda ms: content.replace(b"8.0", ms)),
        st.just(content.replace(b'"batch": 8', b'"batch": 1')),
    ))  # fmt: skip
    path.write_bytes(damage)
    with pytest.raises(TableError, match=r"damaged\.json is not a table"):
        read_table(path)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    for unit in ("cpu:1", "cpu:2"):
        write_table(table_path(tmp_path, "net", unit, "auto"), table(unit, {1: 1.0, 2: 2.0, 4: 4.0}, too_large=5))
    return tmp_path


def test_missing_damaged_and_foreign_tables_are_named(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["partition", "plan", "net", "--batch", "2", "--tables", str(stored)]
    path = table_path(stored, "net", "cpu:2", "auto")

    def error(*options: str) -> str:
        assert main([*command, *options]) == 1
        return capsys.readouterr().err

    assert "there is no table of net on cuda:0" in error("--units", "cpu:1,cuda:0")
    assert "there is no table of net on any unit at precision fp16" in error("--precision", "fp16")
    write_table(path, table("cpu:2", {1: 1.0}, parameters=4))
    assert f"{path} has times of parameters '4', and now it is '3'" in error()
    path.write_text("{")
    assert str(path) in error()
    assert main([*command, "--units", "cpu:1"]) == 0
