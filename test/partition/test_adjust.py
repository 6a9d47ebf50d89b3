"""A batch that is divided again by the times of its units while all of them run; images in half precision."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import SHAPE, expected, table

from multi_dnn_ros.cli import partition_run
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition.adjust import run_adjusted
from multi_dnn_ros.partition.executor import NetworkRequest, RunTimes, random_images
from multi_dnn_ros.partition.session import BatchSession, Computed, Share
from multi_dnn_ros.planning.batch_plan import Plan, plan_exact, replanned, slowed
from multi_dnn_ros.planning.batch_table import BatchTable, table_path, write_table
from multi_dnn_ros.planning.batch_units import parse_units


@pytest.fixture
def command(tmp_path, capsys: pytest.CaptureFixture[str]):
    """Runs `partition run` with 12 images; in the tables, every unit needs 10 ms per image.

    Returns the report, and what was printed.
    """

    def run(*units: str, options: tuple[str, ...] = ()) -> tuple[dict, str]:
        for name in units:
            write_table(table_path(tmp_path, "fake", name, "auto"), table(name, 10.0, max_batch=32))
        begin = ["partition", "run", "fake", "--tables", str(tmp_path), "--units", ",".join(units), "--batch", "12"]
        report = tmp_path / "run.json"
        assert main([*begin, "--rounds", "3", "--seed", "3", "--report", str(report),
                     "--output", str(tmp_path / "out.npz"), *options]) == 0  # fmt: skip
        right = expected(random_images(SHAPE, 12, seed=3))[0]
        np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output_0"], right, rtol=1e-6)
        return json.loads(report.read_text()), capsys.readouterr().out

    return run


def test_a_batch_is_divided_again_by_the_times_measured_together(command) -> None:
    report, printed = command("fake:a/ms=10", "fake:b/ms=30")
    assert report["first"]["plan"]["images"] == {"fake:a/ms=10": 6, "fake:b/ms=30": 6}
    assert report["plan"]["images"] == {"fake:a/ms=10": 9, "fake:b/ms=30": 3}
    assert 2.9 < report["factors"]["fake:b/ms=30"] < 4.0
    assert "divided again: 9 + 3 images (before: 6 + 6 images" in printed
    assert report["measured_ms"] < 0.7 * report["first"]["measured_ms"]
    assert report["measured_ms"] == pytest.approx(report["plan"]["predicted_ms"], rel=0.2)


def test_equally_slow_units_keep_their_images_and_the_prediction_of_the_tables(command) -> None:
    report, printed = command("fake:a/ms=20", "fake:b/ms=20")
    assert set(report["plan"]["images"].values()) == {6}
    assert report["plan"] == report["first"]["plan"]
    assert report["plan"]["predicted_ms"] == 60.0
    assert report["rounds"] == report["first"]["rounds"]  # not measured twice
    assert all(1.9 < factor < 2.5 for factor in report["factors"].values())
    assert re.search(r"fake:a/ms=20 2\.\d\d \(1[2-4]\d(\.\d)? ms\)", printed)
    assert "no other division is faster: 6 + 6 images" in printed
    assert "predicted from the tables 60 ms, measured 1" in printed


def test_a_division_that_turns_out_slower_is_not_used(command) -> None:
    report, printed = command("fake:a/ms=10", "fake:b/ms=20/only=6")
    assert set(report["plan"]["images"].values()) == {6}
    assert "no other division is faster" in printed


def test_the_plan_of_the_tables_is_kept_without_adjustment(command) -> None:
    report, printed = command("fake:a/ms=10", "fake:b/ms=30", options=("--no-adjust",))
    assert set(report["plan"]["images"].values()) == {6}
    assert "first" not in report
    assert "divided again" not in printed


def test_a_unit_that_fails_in_the_first_run_ends_the_measurement(command) -> None:
    report, printed = command("fake:a/ms=1", "fake:b/fail=1")
    assert report["repeated_images"] == 6
    assert "factors" not in report
    assert "not measured: a unit failed before the first timed run was complete" in printed
    assert "1 unit failed; 6 images were computed by other units in " in printed


@pytest.mark.parametrize("failing", ["fake:b/ms=30", "fake:a/ms=10,fake:b/ms=30"])
def test_a_failure_of_the_second_division_leaves_the_outputs_and_times_of_the_first(command, failing: str) -> None:
    """Also if no unit is left."""
    units = [name + "/fail_unless=6" * (name in failing) for name in ("fake:a/ms=10", "fake:b/ms=30")]
    report, printed = command(*units)
    assert set(report["plan"]["images"].values()) == {6}
    assert report["plan"]["predicted_ms"] == 60.0
    assert len(report["rounds"]) == 3
    assert report["measured_ms"] == report["first"]["measured_ms"] > 180.0
    count = failing.count("fake")
    assert len(report["failures"]) == count
    assert (report["repeated_images"], report["first"]["failures"]) == (0, [])
    assert "another division failed, 9 + 3 images; the first is used: 6 + 6 images" in printed
    assert f"{count} unit{'s' * (count > 1)} failed after the outputs were complete: unit fake:" in printed
    assert "not measured" not in printed
    assert ("largest difference from another unit's outputs: 0 of" in printed) == (count == 1)


def test_subsets_are_adjusted_too_and_all_units_are_not_run_again(command, monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[tuple[str, ...]] = []
    monkeypatch.setattr(BatchSession, "load", lambda self, images, real=BatchSession.load: (
        divided.append(tuple(self.plan.images)), real(self, images)
    )[1])  # fmt: skip
    a, b, c = "fake:a/ms=10", "fake:b/ms=30", "fake:c/ms=30"
    report, printed = command(a, b, c, options=("--compare",))
    entries = {tuple(entry["units"]): entry for entry in report["subsets"]}
    assert len(entries) == 7
    assert entries[a, b]["plan"]["images"] == {a: 9, b: 3}
    assert entries[a, b]["first"]["plan"]["images"] == {a: 6, b: 6}
    assert entries[a, b]["measured_ms"] == pytest.approx(entries[a, b]["plan"]["predicted_ms"], rel=0.2)
    assert entries[b, c]["plan"]["predicted_ms"] == 60.0
    assert "factors" not in entries[a,]
    for key in ("plan", "measured_ms", "rounds", "factors", "first"):
        assert entries[a, b, c][key] == report[key]
    assert divided.count((a, b, c)) == 2
    assert f"| {a} + {b} " in printed
    assert f"| {entries[a, b]['plan']['predicted_ms']:.4g} " in printed
    assert f"| {entries[a, b]['measured_ms']:.4g} " in printed


def test_all_units_in_another_order_are_not_run_again_either(command) -> None:
    a, b = "fake:a/ms=10", "fake:b/ms=30"
    report, printed = command(a, b, options=("--subset", f"{b},{a}"))
    (entry,) = report["subsets"]
    assert entry["units"] == [a, b]
    assert entry["rounds"] == report["rounds"]
    assert f"| {a} + {b} | 9 + 3 " in printed


def test_units_that_only_the_second_division_uses_are_warned_about_once(
    tmp_path, command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_run, "sharing_warnings", lambda units, cores: [f"{unit.name}!" for unit in units])
    units = ["fake:late/ms=45", "fake:a/ms=10", "fake:b/ms=10", "fake:slow/ms=100"]
    for name in units:
        write_table(table_path(tmp_path, "fake", name, "auto"), table(name, 45.0 if "late" in name else 10.0))
    begin = ["partition", "run", "fake", "--tables", str(tmp_path), "--units", ",".join(units), "--batch", "12"]
    assert main([*begin, "--rounds", "3"]) == 0
    printed = capsys.readouterr().out
    assert re.findall("warning: (.*)!", printed) == [*units[1:], units[0]]


class FakeSession(BatchSession):
    """Computes nothing; a unit takes `ms` per image."""

    def __init__(self, tables: dict[str, BatchTable], batch: int, ms: dict[str, float]) -> None:
        self.plan, self.failures, self.tolerance = plan_exact(tables, batch), {}, 1e-4
        self.ms, self.divisions = ms, []

    def change_plan(self, plan: Plan) -> None:
        self.plan = plan

    def load(self, images: np.ndarray) -> None:
        self.divisions.append(tuple(self.plan.images.values()))

    def compute(self) -> Computed:
        ends = {name: count * self.ms[name] for name, count in self.plan.images.items() if count}
        times = RunTimes(0.0, 1.0, 0.0)
        return Computed(tuple(Share(name, 0, 1, 0.0, end, times) for name, end in ends.items()), 0, 0.0)

    def outputs(self, images: int) -> tuple[np.ndarray, ...]:
        return ()


def test_a_unit_without_images_is_assumed_to_be_slowed_like_the_others() -> None:
    """By its table alone the last unit would get images."""
    tables = {"a": table("a", 10.0), "b": table("b", 10.0), "c": table("c", 45.0)}
    session = FakeSession(tables, 12, {"a": 20.0, "b": 20.0, "c": 90.0})
    adjusted = run_adjusted(session, tables, random_images(SHAPE, 12), 2)
    assert session.divisions == [(6, 6, 0)]
    assert adjusted.factors == {"a": 2.0, "b": 2.0}
    assert (adjusted.kept, adjusted.tried) == (True, None)
    tables["c"] = table("c", 11.0)
    session = FakeSession(tables, 12, {"a": 20.0, "b": 80.0, "c": 22.0})
    adjusted = run_adjusted(session, tables, random_images(SHAPE, 12), 2)
    assert not adjusted.kept
    assert adjusted.plan.total_ms < adjusted.first.measured_ms


def test_a_division_that_is_slower_than_the_first_is_not_measured_again() -> None:
    tables = {"a": table("a", 10.0), "b": table("b", 10.0)}
    session = FakeSession(tables, 12, {"a": 10.0, "b": 30.0})
    real = session.compute
    session.compute = lambda: replace(  # type: ignore[method-assign]
        done := real(), shares=tuple(replace(share, end_ms=share.end_ms + 900.0 * (session.plan.images["a"] != 6))
                                     for share in done.shares)
    )  # fmt: skip
    adjusted = run_adjusted(session, tables, random_images(SHAPE, 12), 2)
    assert session.divisions == [(6, 6), (9, 3)]
    assert adjusted.kept
    assert adjusted.tried is not None
    assert adjusted.done.measured_ms == 180.0
    assert adjusted.plan.total_ms == 60.0
    assert session.plan is adjusted.plan


@given(factor=st.floats(0.2, 5.0), batch=st.integers(1, 30), ms=st.floats(0.1, 9.0))
def test_a_slowed_unit_changes_predictions_in_proportion(factor: float, batch: int, ms: float) -> None:
    units = {"a": table("a", 1.0), "b": table("b", ms)}
    plan = plan_exact(units, batch)
    again = replanned(plan, {name: slowed(unit, factor) for name, unit in units.items()})
    assert again.images == plan.images
    assert again.total_ms == pytest.approx(factor * plan.total_ms)
    other = plan_exact({"a": units["a"], "b": slowed(units["b"], factor)}, batch)
    assert other.total_ms <= replanned(plan, {"a": units["a"], "b": slowed(units["b"], factor)}).total_ms + 1e-9


@pytest.mark.parametrize(
    ("names", "dtype"), [("fake:a/half=1,fake:b/half=1", "float16"), ("fake:a/half=1,fake:b", "float32")]
)
def test_images_are_copied_in_half_precision_if_all_units_take_it(names: str, dtype: str) -> None:
    units = parse_units(names)
    tables = {unit.name: table(unit.name, 1.0) for unit in units}
    images = random_images(SHAPE, 4)
    images[0, 0, 0, 0] = 1e6  # infinite in float16, as on the device
    with BatchSession(units, tables, plan_exact(tables, 4), NetworkRequest("fake"), "auto") as session:
        _, first_pixels = session.run(images)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(first_pixels, images[:, :1, 0, :1].astype(dtype).astype("float32"))
