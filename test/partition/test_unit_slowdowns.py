"""Times of units together, which `partition run` keeps for later plans of the same units."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import table

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.cli.partition_arguments import plan_session
from multi_dnn_ros.common.file_lock import exclusive_lock
from multi_dnn_ros.partition.executor import NetworkRequest
from multi_dnn_ros.planning.batch_plan import plan_exact, plan_together, slowed_by
from multi_dnn_ros.planning.batch_table import BatchTable, read_table, table_path, write_table
from multi_dnn_ros.planning.batch_units import parse_units
from multi_dnn_ros.planning.unit_slowdowns import read_slowdowns, record_slowdowns, slowdowns_path

FAST, SLOW = "fake:a/ms=10", "fake:b/ms=30"


def partition(action: str, folder: Path, *options: str, units: str = f"{FAST},{SLOW}") -> int:
    return main(["partition", action, "fake", "--tables", str(folder), "--units", units, "--batch", "12", *options])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tables after a run. In the tables both units need 10 ms per image, really 10 and 30 ms."""
    folder = tmp_path_factory.mktemp("measured")
    for name in (FAST, SLOW):
        write_table(table_path(folder, "fake", name, "auto"), table(name, 10.0, max_batch=32))
    assert partition("run", folder, "--rounds", "3") == 0
    return folder


def planned(folder: Path, *options: str) -> dict:
    file = folder / "plan.json"
    assert partition("plan", folder, "--output", str(file), *options) == 0
    return json.loads(file.read_text())


def test_the_next_plan_has_the_times_of_the_run(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = planned(measured)
    assert content["plan"]["images"] == {FAST: 9, SLOW: 3}
    assert content["plan"]["predicted_ms"] == pytest.approx(90.0, rel=0.2)
    alone = {tuple(each["images"]): each["predicted_ms"] for each in content["subsets"] if len(each["images"]) == 1}
    assert alone == {(FAST,): 120.0, (SLOW,): 120.0}  # by the tables
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "these units together" in line]
    assert f"{SLOW} 3." in line


def test_the_next_run_begins_with_this_plan(measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, report = tmp_path / "tables", tmp_path / "run.json"
    shutil.copytree(measured, folder)
    assert partition("run", folder, "--rounds", "3", "--report", str(report)) == 0
    content = json.loads(report.read_text())
    assert content["first"]["plan"]["images"] == {FAST: 9, SLOW: 3}
    assert content["first"]["plan"]["predicted_ms"] == pytest.approx(content["first"]["measured_ms"], rel=0.1)
    assert 2.5 < content["factors"][SLOW] < 4.0  # relative to the table, not to the plan
    assert "predicted from the tables and an earlier run" in capsys.readouterr().out


def test_a_session_of_replay_and_evaluate_too(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with plan_session("fake", "auto", parse_units(f"{FAST},{SLOW}"), measured, 12, NetworkRequest("fake")) as session:
        assert session.plan.images == {FAST: 9, SLOW: 3}
    assert f"9 on {FAST}, 3 on {SLOW}" in capsys.readouterr().err


def test_a_unit_alone_is_used_if_the_units_slow_each_other_down_too_much(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(measured, folder)
    for name, ms in ((FAST, 10.0), (SLOW, 9.0)):
        write_table(table_path(folder, "fake", name, "auto"), table(name, ms, max_batch=32))
    tables = {name: read_table(table_path(folder, "fake", name, "auto")) for name in (FAST, SLOW)}
    record_slowdowns(folder, "fake", "auto", tables, {FAST: 3.0, SLOW: 3.0}, {FAST: 6, SLOW: 6})
    content = planned(folder)
    assert content["plan"]["images"] == {FAST: 0, SLOW: 12}
    assert content["plan"]["predicted_ms"] == 108.0
    assert min(each["predicted_ms"] for each in content["subsets"]) == 108.0
    with plan_session("fake", "auto", parse_units(f"{FAST},{SLOW}"), folder, 12, NetworkRequest("fake")) as session:
        assert session.plan.images == {FAST: 0, SLOW: 12}


@given(
    ms=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4),
    factors=st.lists(st.floats(1.0, 5.0), min_size=4, max_size=4),
    batch=st.integers(1, 40),
    search=st.sampled_from(["exact", "greedy"]),
)
def test_no_plan_is_slower_than_a_unit_alone(ms: list[float], factors: list[float], batch: int, search: str) -> None:
    tables = {f"fake:u{number}": table(f"fake:u{number}", each, max_batch=40) for number, each in enumerate(ms)}
    slowed = slowed_by(tables, dict(zip(tables, factors, strict=False)))
    plan = plan_together(tables, batch, search, lambda units: slowed)
    assert plan.batch == batch
    assert plan.total_ms <= min(each.predict_ms(batch) for each in tables.values())


def test_other_units_and_other_devices_have_their_tables(measured: Path, tmp_path: Path) -> None:
    tables = {name: table(name, 10.0, max_batch=32) for name in (FAST, SLOW)}
    together = read_slowdowns(measured, "fake", "auto")
    assert together.times(tables)[SLOW].predict_ms(1) > 25.0
    assert together.times({SLOW: tables[SLOW]})[SLOW].predict_ms(1) == 10.0
    updated = {**tables, SLOW: table(SLOW, 10.0, max_batch=32, device="fake device; auto; version 2")}
    assert together.times(updated)[SLOW].predict_ms(1) == 10.0
    assert read_slowdowns(measured, "fake", "fp16").times(tables) == tables
    # The ratios are of no use for a table that was measured again.
    remeasured = {**tables, SLOW: table(SLOW, 30.0, max_batch=32)}
    assert together.times(remeasured) == remeasured
    # A measurement replaces that of the same units.
    again = together.with_set(updated, {FAST: 2.0, SLOW: 2.0}, {FAST: 5, SLOW: 0})
    assert len(again.sets) == len(together.sets)
    assert again.times(updated)[FAST].predict_ms(1) == 20.0


def test_writers_at_the_same_time_lose_no_measurement(tmp_path: Path) -> None:
    sets = [{name: table(name, 10.0, max_batch=32) for name in (FAST, f"fake:{number}")} for number in range(24)]

    def record(tables: dict[str, BatchTable]) -> None:
        record_slowdowns(tmp_path, "fake", "auto", tables, dict.fromkeys(tables, 2.0), dict.fromkeys(tables, 4))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(record, sets))
    written = read_slowdowns(tmp_path, "fake", "auto")
    assert all(written.find(tables) is not None for tables in sets)


def test_a_run_adds_its_measurement_after_another_process_has_added_one(measured: Path, tmp_path: Path) -> None:
    """The other process has read the file when the run ends, and writes it later."""
    folder = tmp_path / "tables"
    shutil.copytree(measured, folder)
    path = slowdowns_path(folder, "fake", "auto")
    content = json.loads(path.read_text())
    other = {"devices": {"c": "d"}, "factors": {"c": 1.0}, "images": {}, "table_ms": {}, "measured_at": "2026-01-01"}
    path.write_text(json.dumps({**content, "sets": []}))
    with ThreadPoolExecutor(1) as pool:
        with exclusive_lock(path.with_suffix(".lock"), ""):
            run = pool.submit(partition, "run", folder, "--rounds", "3")
            wait([run], 3.0)
            assert not run.done()
            path.write_text(json.dumps({**content, "sets": [other]}))
        assert run.result(60.0) == 0
    assert len(json.loads(path.read_text())["sets"]) == 2


NO_FACTORS = json.dumps({
    "model": "fake", "precision": "auto",
    "sets": [{"devices": {}, "factors": {}, "images": {}, "table_ms": {}, "measured_at": ""}],
})  # fmt: skip


@pytest.mark.parametrize(
    "content", ["", "{", NO_FACTORS, '{"format": "other"}', '{"model": "fake", "precision": "auto", "x": 1}']
)
def test_a_broken_file_is_ignored_with_a_warning(
    content: str, measured: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(measured, folder)
    path = slowdowns_path(folder, "fake", "auto")
    path.write_text(content)
    assert partition("plan", folder) == 0
    (line,) = {record.getMessage() for record in caplog.records}
    assert f"{path}: not a file of units that were measured together" in line
    assert "ignored" in line
    assert not read_slowdowns(folder, "fake", "auto").sets
    assert partition("run", folder, "--no-adjust", "--rounds", "2") == 0
    assert read_slowdowns(folder, "fake", "auto").sets  # written again


def test_a_run_whose_times_cannot_be_kept_warns(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(measured, folder)
    slowdowns_path(folder, "fake", "auto").unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multi_dnn_ros.planning.unit_slowdowns.write_json", full)
    assert partition("run", folder, "--rounds", "1") == 0
    assert "warning: the times of the units together are not kept: [Errno 28] No space left" in capsys.readouterr().out


def test_a_unit_that_failed_leaves_no_times(tmp_path: Path) -> None:
    units = ("fake:a", "fake:b/fail=1")
    for name in units:
        write_table(table_path(tmp_path, "fake", name, "auto"), table(name, 10.0, max_batch=32))
    assert partition("run", tmp_path, "--rounds", "1", units=",".join(units)) == 0
    assert not slowdowns_path(tmp_path, "fake", "auto").exists()


@given(
    factors=st.dictionaries(st.sampled_from("abc"), st.floats(0.2, 5.0), min_size=1),
    rates=st.fixed_dictionaries({name: st.floats(0.1, 9.0) for name in "abcd"}),
    batch=st.integers(1, 40),
)
def test_units_without_a_factor_take_a_usual_one(
    factors: dict[str, float], rates: dict[str, float], batch: int
) -> None:
    units = {name: table(name, ms) for name, ms in rates.items()}
    times = slowed_by(units, factors)
    for name, unit in units.items():
        factor = times[name].predict_ms(batch) / unit.predict_ms(batch)
        assert min(factors.values()) - 1e-9 <= factor <= max(factors.values()) + 1e-9
        if name in factors:
            assert factor == pytest.approx(factors[name])
    assert sum(plan_exact(times, batch).images.values()) == batch
