"""A batch that is divided again by the times of its units while all of them run; images in half precision."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import SHAPE, expected, table

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition.executor import NetworkRequest, random_images
from multi_dnn_ros.partition.session import BatchSession
from multi_dnn_ros.planning.batch_plan import plan_exact, replanned, slowed
from multi_dnn_ros.planning.batch_table import table_path, write_table
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


def test_equally_slow_units_keep_their_images_but_not_the_predicted_time(command) -> None:
    report, printed = command("fake:a/ms=20", "fake:b/ms=20")
    assert set(report["plan"]["images"].values()) == {6}
    assert report["first"]["plan"]["predicted_ms"] == 60.0
    assert 115.0 < report["plan"]["predicted_ms"] < 150.0
    assert "no other division is faster: 6 + 6 images" in printed


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
    assert "1 units failed; others computed their 6 images" in printed


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
