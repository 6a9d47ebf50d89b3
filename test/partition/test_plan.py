"""The division of a batch: properties of both searches, and the command."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_fakes import row, table

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.planning.batch_plan import PlanError, capacity, plan_exact, plan_greedy, plan_subsets
from multi_dnn_ros.planning.batch_table import BatchTable, Row, read_table, sizes_to_measure, table_path, write_table

TIMES = st.floats(0.01, 50.0)


@st.composite
def tables(draw, max_units: int = 4, max_batch: int = 40) -> dict[str, BatchTable]:
    """Arbitrary times; a larger batch may take less time than a smaller one."""
    found = {}
    for number in range(draw(st.integers(1, max_units))):
        sizes = sizes_to_measure(draw(st.integers(1, max_batch)))
        rows = tuple(row(batch, draw(TIMES)) for batch in sizes)
        found[f"fake:u{number}"] = table(f"fake:u{number}", 1.0, rows=rows)
    return found


@st.composite
def cases(draw, max_units: int = 4, max_batch: int = 40) -> tuple[dict[str, BatchTable], int]:
    units = draw(tables(max_units, max_batch))
    return units, draw(st.integers(1, capacity(units)))


@settings(max_examples=50)
@given(cases())
def test_exact_is_not_worse_than_greedy_and_greedy_not_worse_than_one_unit(case) -> None:
    units, batch = case
    exact, greedy = plan_exact(units, batch), plan_greedy(units, batch)
    assert exact.total_ms <= greedy.total_ms
    alone = [unit.predict_ms(batch) for unit in units.values() if unit.largest >= batch]
    assert greedy.total_ms <= min(alone, default=float("inf"))


@settings(max_examples=50)
@given(cases())
def test_shares_sum_to_the_batch_and_stay_within_the_capacity(case) -> None:
    units, batch = case
    for plan in (plan_exact(units, batch), plan_greedy(units, batch)):
        assert plan.batch == batch
        assert list(plan.images) == list(units)
        assert all(0 <= count <= units[name].largest for name, count in plan.images.items())
        assert plan.ms == {name: units[name].predict_ms(count) for name, count in plan.images.items()}


@given(cases(max_units=3, max_batch=6))
def test_exact_search_equals_exhaustive_search(case) -> None:
    units, batch = case
    every = product(*(range(min(batch, unit.largest) + 1) for unit in units.values()))
    best = min(
        max(unit.predict_ms(count) for unit, count in zip(units.values(), counts, strict=True))
        for counts in every
        if sum(counts) == batch
    )
    assert plan_exact(units, batch).total_ms == best


@settings(max_examples=50)
@given(cases(max_units=3))
def test_more_units_never_take_longer(case) -> None:
    units, batch = case
    plans = plan_subsets(units, batch)
    assert len(plans) == 2 ** len(units) - 1
    for subset, plan in plans.items():
        assert (plan is None) == (capacity({name: units[name] for name in subset}) < batch)
        if plan is not None:
            assert plans[tuple(units)].total_ms <= plan.total_ms


def test_units_of_known_rates_end_together() -> None:
    units = {"fake:fast": table("fake:fast", 1.0, max_batch=128), "fake:slow": table("fake:slow", 4.0, max_batch=128)}
    for plan in (plan_exact(units, 100), plan_greedy(units, 100)):
        assert plan.images == {"fake:fast": 80, "fake:slow": 20}
        assert plan.total_ms == 80.0


@pytest.mark.parametrize("search", [plan_exact, plan_greedy])
def test_a_batch_that_is_too_large_is_refused_with_the_capacity(search) -> None:
    failed = table("fake:b", 1.0, max_batch=4).with_rows([Row(batch=5, samples=0, failure="ran out of memory")])
    with pytest.raises(PlanError, match=r"batch is 13, .* at most 12 images .*\(fake:a 8, fake:b 4\)"):
        search({"fake:a": table("fake:a", 1.0, max_batch=8), "fake:b": failed}, 13)
    with pytest.raises(PlanError, match=r"batch is 1000000000000000, .* at most 8 images"):
        search({"fake:a": table("fake:a", 1.0, max_batch=8)}, 10**15)  # no memory is taken for it
    with pytest.raises(PlanError, match="no unit"):
        search({}, 1)


@pytest.fixture
def stored(tmp_path):
    for name, ms in (("fake:a/ms=1", 1.0), ("fake:b/ms=3", 3.0)):
        write_table(table_path(tmp_path, "fake", name, "auto"), table(name, ms, max_batch=32))
    return tmp_path


def test_the_command_prints_plan_and_subsets(stored, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = stored / "plan.json", stored / "plan.png"
    begin = ["partition", "plan", "fake", "--tables", str(stored), "--batch"]
    assert main([*begin, "40", "--output", str(out), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "| fake:a/ms=1 | 30     | 30           | measured up to 32" in printed
    content = json.loads(out.read_text())
    assert content["plan"]["images"] == {"fake:a/ms=1": 30, "fake:b/ms=3": 10}
    assert len(content["subsets"]) == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    path = table_path(stored, "fake", "fake:b/ms=3", "auto")
    write_table(path, read_table(path).with_rows([Row(batch=33, samples=0, failure="ran out of memory")]))
    assert main([*begin, "40"]) == 0
    (of_b, alone) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| fake:b/ms=3 "))
    assert of_b.endswith("| cannot hold it               |")
    assert "cannot hold it" in alone
    assert main([*begin, "65"]) == 1
    assert "batch is 65, but the units hold at most 64" in capsys.readouterr().err


def test_the_command_refuses_tables_that_do_not_match(stored, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["partition", "plan", "fake", "--batch", "4", "--tables", str(stored)]
    path = table_path(stored, "fake", "fake:b/ms=3", "auto")
    assert main([*begin, "--units", "fake:c"]) == 1
    assert "there is no table of fake on fake:c" in capsys.readouterr().err
    write_table(path, table("fake:b/ms=3", 3.0, device="another GPU"))
    assert main(begin) == 1
    assert "was measured on 'another GPU'; fake:b/ms=3 is 'fake device; auto; version 1' now" in capsys.readouterr().err
    assert main([*begin, "--unchecked"]) == 0
    write_table(path, table("fake:b/ms=3", 3.0, parameters=8))
    assert main([*begin, "--unchecked"]) == 1
    assert "expected (model, unit, precision, shape, parameters)" in capsys.readouterr().err
    path.write_text("{")
    assert main(begin) == 1
    assert "not a table of batch times" in capsys.readouterr().err


def test_a_unit_whose_measurements_all_failed_is_left_out(stored, capsys: pytest.CaptureFixture[str]) -> None:
    name = "fake:c/max_batch=0"
    path = table_path(stored, "fake", name, "auto")
    failed = table(name, 1.0, rows=(Row(batch=1, samples=0, failure="ran out of memory"),))
    write_table(path, failed)
    options = ["fake", "--tables", str(stored)]
    assert main(["partition", "plan", *options, "--batch", "4"]) == 0
    printed = capsys.readouterr()
    assert f"unit {name} is not used: {path} has no batch size that was measured without a failure" in printed.err
    assert name not in printed.out
    assert main(["partition", "plan", *options, "--units", f"fake:a/ms=1,{name}", "--batch", "4"]) == 1
    error = capsys.readouterr().err
    assert f"`multi-dnn partition table --units {name} --refresh N`" in error
    assert f"`multi-dnn partition profile --units {name} --replace`" in error
    assert main(["partition", "table", *options, "--plot", str(stored / "t.png"), "--csv", str(stored / "t.csv")]) == 0
    assert "ran out of memory" in capsys.readouterr().out
    assert main(["partition", "table", *options, "--units", name, "--drop", "1"]) == 0
    assert read_table(path).rows == ()
    assert main(["partition", "table", *options, "--units", name, "--refresh", "1"]) == 0
    assert read_table(path).rows[0].failure == "ran out of memory: 1 images do not fit"
    for other in ("fake:a/ms=1", "fake:b/ms=3"):
        table_path(stored, "fake", other, "auto").unlink()
    assert main(["partition", "plan", *options, "--batch", "4"]) == 1
    assert f"in all tables of fake at precision auto in {stored} every measurement failed" in capsys.readouterr().err


def test_the_command_changes_tables(stored, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["partition", "table", "fake", "--tables", str(stored)]
    csv, plot, other = stored / "t.csv", stored / "t.png", stored / "other.json"
    assert main([*begin, "--csv", str(csv), "--plot", str(plot)]) == 0
    assert len(csv.read_text().splitlines()) == 1 + 2 * len(sizes_to_measure(32))
    assert plot.read_bytes().startswith(b"\x89PNG")
    units = ["--units", "fake:a/ms=1"]
    assert main([*begin, *units, "--drop", "16", "17"]) == 0
    assert main([*begin, *units, "--csv", str(csv)]) == 0
    assert len(csv.read_text().splitlines()) == 1 + len(sizes_to_measure(32)) - 2
    write_table(other, table("fake:a/ms=1", 1.0, rows=(row(16, 99.0),)))
    assert main([*begin, *units, "--merge", str(other), "--refresh", "2", "--csv", str(csv)]) == 0
    lines = {line.split(",")[3]: line.split(",") for line in csv.read_text().splitlines()[1:]}
    assert (float(lines["16"][15]), lines["2"][4]) == (99.0, "15")
    capsys.readouterr()
    write_table(other, table("fake:a/ms=1", 1.0, parameters=8))
    assert main([*begin, "--merge", str(other)]) == 1
    assert "is a table of parameters '8', not '7'" in capsys.readouterr().err
    write_table(other, table("fake:a/ms=1", 1.0, model="another"))
    assert main([*begin, "--merge", str(other)]) == 2
    assert "is a table of another" in capsys.readouterr().err
