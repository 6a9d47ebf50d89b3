"""Batch sizes, tables of times, and how they are measured and continued."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import FakeExecutor, row, table

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.partition import measure, messages
from multi_dnn_ros.partition.executor import NetworkRequest, RunTimes
from multi_dnn_ros.partition.measure import Sampling, profile_unit
from multi_dnn_ros.partition.unit_process import UnitFailure, UnitHandle
from multi_dnn_ros.planning.batch_table import (
    CSV_HEADER,
    BatchTable,
    Row,
    TableError,
    csv_rows,
    read_table,
    sizes_to_measure,
    table_path,
    write_table,
)
from multi_dnn_ros.planning.batch_units import Unit, parse_unit
from multi_dnn_ros.planning.checked_file import ProfileError

FAKE = NetworkRequest("fake")
FAST = Sampling(3, 1.0)


def test_sizes_are_powers_of_two_and_their_neighbours() -> None:
    assert sizes_to_measure(1) == (1,)
    assert sizes_to_measure(20) == (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20)
    assert sizes_to_measure(32)[-3:] == (17, 31, 32)
    assert {127, 128, 129} <= set(sizes_to_measure(129))


@given(st.integers(1, 5000))
def test_sizes_increase_up_to_the_largest(max_batch: int) -> None:
    sizes = sizes_to_measure(max_batch)
    assert sizes[0] == 1
    assert sizes[-1] == max_batch
    assert list(sizes) == sorted(set(sizes))


def test_times_between_two_sizes_are_interpolated_linearly() -> None:
    found = table("fake:a", 2.0, max_batch=17, offset_ms=1.0)
    assert found.predict_ms(0) == 0.0
    assert found.predict_ms(16) == 33.0
    assert found.predict_ms(12) == pytest.approx(25.0)
    with pytest.raises(TableError, match="measured up to 17 images of fake, not 18"):
        found.predict_ms(18)
    # Nothing is known to take less than the smallest batch that was measured.
    assert table("fake:a", 1.0, rows=(row(4, 8.0),)).predict_ms(2) == 8.0


@given(times=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=9), smallest=st.integers(1, 3))
def test_a_table_predicts_more_than_0_ms_or_is_invalid(times: list[float], smallest: int) -> None:
    rows = tuple(row(smallest + 3 * index, ms) for index, ms in enumerate(times))
    if 0.0 in times:
        with pytest.raises(ValueError, match=r"batch \d+ took 0 ms in total; allowed: more than 0"):
            table("fake:a", 1.0, rows=rows)
    else:
        found = table("fake:a", 1.0, rows=rows)
        assert all(found.predict_ms(batch) > 0.0 for batch in range(1, found.largest + 1))


def test_an_executor_that_reports_no_time_is_an_error_and_not_a_table(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = (RunTimes(0.0, 0.0, 0.0),)
    monkeypatch.setattr(UnitHandle, "ask", lambda *request, real=UnitHandle.ask: (
        messages.Measured(none) if isinstance(request[1], messages.Measure) else real(*request)
    ))  # fmt: skip
    with pytest.raises(UnitFailure, match="reported 0 ms for 2 images"):
        profile_unit(parse_unit("fake:a"), FAKE, "auto", [2], tmp_path, sampling=FAST)
    assert not list(tmp_path.rglob("*.json"))


def test_a_failed_size_limits_the_capacity_of_the_unit() -> None:
    failed = Row(batch=8, samples=0, failure="ran out of memory")
    found = table("fake:a", 1.0, max_batch=4).with_rows([failed, row(16, 16.0)])
    assert found.largest == 4


def test_a_written_table_is_read_unchanged(tmp_path) -> None:
    found = table("cuda:0/16sms", 1.0, max_batch=9)
    path = table_path(tmp_path, "torchvision:resnet18", found.unit, "fp16")
    assert path == tmp_path / "torchvision-resnet18" / "cuda-0=16sms.fp16.json"
    write_table(path, found)
    assert read_table(path) == found


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.update(format="multi_dnn_ros batch times 2"),
        lambda content: content["rows"].reverse(),
        lambda content: content["rows"][0].update(total=None),
        lambda content: content["rows"][0].update(failure="ran out of memory"),
        lambda content: content["rows"][0]["total"].update(p50=float("nan")),
        lambda content: content["rows"][1]["total"].update(p25=0.0, p50=0.0, p75=0.0),
        lambda content: content.pop("unit"),
    ],
)
def test_a_file_that_is_not_a_table_is_named(tmp_path, damage) -> None:
    path = tmp_path / "table.json"
    content = json.loads(table("fake:a", 1.0, max_batch=3).model_dump_json())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError, match=r"table\.json: not a table of batch times"):
        read_table(path)


def test_csv_has_a_line_for_each_size() -> None:
    failed = Row(batch=4, samples=0, failure="ran out of memory")
    lines = csv_rows([table("fake:a", 1.5, max_batch=3).with_rows([failed])])
    assert [len(line) for line in lines] == [len(CSV_HEADER)] * 4
    second, last = (dict(zip(CSV_HEADER, lines[at], strict=True)) for at in (1, 3))
    assert (second["batch"], second["total_p50_ms"], second["compute_p75_ms"]) == ("2", "3", "3")
    assert (last["total_p50_ms"], last["failure"]) == ("", "ran out of memory")


def test_profiling_measures_every_size_and_stores_it(tmp_path) -> None:
    seen: list[tuple[int, int, str]] = []
    unit = parse_unit("fake:a/ms=2")
    found = profile_unit(unit, FAKE, "auto", sizes_to_measure(5), tmp_path, sampling=FAST, provenance={"by": "test"},
                         progress=lambda *step: seen.append(step))  # fmt: skip
    assert [row.batch for row in found.rows] == [1, 2, 3, 4, 5]
    # The unit sleeps at least this long, whatever else runs on this machine.
    assert all(row.total.p50 >= 2.0 * row.batch for row in found.rows)
    assert all(row.samples == 3 and row.compute.p50 <= row.total.p50 for row in found.rows)
    assert seen[0] == (0, 5, "fake:a/ms=2 batch 1")
    assert seen[-1][:2] == (5, 5)
    assert read_table(table_path(tmp_path, "fake", unit.name, "auto")) == found
    assert found.provenance == {"by": "test"}


def test_an_interrupted_profile_is_continued(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = parse_unit("fake:a")

    def interrupted(done: int, total: int, what: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_unit(unit, FAKE, "auto", sizes_to_measure(9), tmp_path, sampling=FAST, progress=interrupted)
    path = table_path(tmp_path, "fake", unit.name, "auto")
    first = read_table(path)
    assert [row.batch for row in first.rows] == [1, 2, 3]
    monkeypatch.setattr(measure, "_now", lambda: "later")
    rest = profile_unit(unit, FAKE, "auto", sizes_to_measure(9), tmp_path, sampling=FAST)
    assert rest.rows[:3] == first.rows
    assert {row.measured_at for row in rest.rows[3:]} == {"later"}
    again = profile_unit(unit, FAKE, "auto", [2], tmp_path, sampling=FAST, refresh=True)
    assert [row.batch for row in again.rows if row.measured_at == "later"] == [2, *(row.batch for row in rest.rows[3:])]


def test_a_table_that_another_command_measures_is_not_changed(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two commands that each write all rows lose those of the other, and their measurements disturb each other."""
    begin = ["partition", "table", "fake", "--units", "fake:a", "--tables", str(tmp_path)]
    path = table_path(tmp_path, "fake", "fake:a", "auto")
    errors: list[str] = []

    def during(done: int, total: int, what: str) -> None:
        if done != 1:
            return
        profile = ["partition", "profile", *begin[2:], "--batches", "5", "--samples", "1"]
        for command in (profile, [*begin, "--drop", "1"], [*begin, "--merge", str(path)]):
            assert main(command) == 1
            errors.append(capsys.readouterr().err)

    found = profile_unit(parse_unit("fake:a"), FAKE, "auto", [1, 2], tmp_path, sampling=FAST, progress=during)
    assert len(errors) == 3
    assert all(f"{path} is being measured or changed by another command" in error for error in errors)
    assert read_table(path) == found
    assert main([*begin, "--drop", "1"]) == 0  # free again
    assert [row.batch for row in read_table(path).rows] == [2]


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    steps: list[int] = []
    with pytest.raises(OSError, match="file"):
        profile_unit(parse_unit("fake:a"), FAKE, "auto", [1], tmp_path / "file", sampling=FAST,
                     progress=lambda done, total, what: steps.append(done))  # fmt: skip
    assert steps == []


def test_rows_that_were_to_be_measured_again_stay_if_that_is_interrupted(tmp_path) -> None:
    unit = parse_unit("fake:a/ms=0.1")
    path = table_path(tmp_path, "fake", unit.name, "auto")
    failed = Row(batch=5, samples=0, failure="ran out of memory")
    write_table(path, table(unit.name, 7.0, max_batch=4).with_rows([failed]))

    def interrupted(done: int, total: int, what: str) -> None:
        if what.endswith("batch 5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_unit(unit, FAKE, "auto", [2, 5, 6], tmp_path, sampling=FAST, refresh=True, progress=interrupted)
    found = read_table(path)
    assert [(row.batch, bool(row.measured_at)) for row in found.rows] == [
        (1, False), (2, True), (3, False), (4, False), (5, False)
    ]  # fmt: skip
    found = profile_unit(unit, FAKE, "auto", [5], tmp_path, sampling=FAST, refresh=True)
    assert found.largest == 5  # what ran out of memory before is tried again


def test_running_out_of_memory_is_recorded_and_ends_the_profile(tmp_path) -> None:
    unit = parse_unit("fake:small/max_batch=4")
    found = profile_unit(unit, FAKE, "auto", sizes_to_measure(32), tmp_path, sampling=FAST)
    assert found.largest == 4
    assert (found.rows[-1].batch, found.rows[-1].failure) == (5, "ran out of memory: 5 images do not fit")
    assert profile_unit(unit, FAKE, "auto", sizes_to_measure(32), tmp_path, sampling=FAST) == found


def test_a_killed_process_counts_as_out_of_memory_and_a_failing_one_does_not(tmp_path) -> None:
    found = profile_unit(parse_unit("fake:a/die=1"), FAKE, "auto", [1, 2], tmp_path, sampling=FAST)
    assert [row.failure for row in found.rows] == ["was killed by SIGKILL (the kernel does this when memory runs out)"]
    with pytest.raises(UnitFailure, match=r"unit fake:a/exit=1 ended with exit code 3"):
        profile_unit(parse_unit("fake:a/exit=1"), FAKE, "auto", [1], tmp_path, sampling=FAST)
    with pytest.raises(UnitFailure, match="failed: a kernel failed"):
        profile_unit(parse_unit("fake:a/fail=1"), FAKE, "auto", [1], tmp_path, sampling=FAST)
    with pytest.raises(UnitFailure, match="there is no such device"):
        profile_unit(parse_unit("fake:a/absent=1"), FAKE, "auto", [1], tmp_path, sampling=FAST)


@pytest.mark.parametrize(
    ("field", "value"), [("parameters", 8), ("shape", (3, 8, 8)), ("device", "fake device; auto; version 0")]
)
def test_a_table_of_another_model_or_version_is_refused_unless_replaced(tmp_path, field: str, value) -> None:
    unit = parse_unit("fake:a")
    path = table_path(tmp_path, "fake", unit.name, "auto")
    write_table(path, table(unit.name, 1.0, max_batch=2, **{field: value}))
    with pytest.raises(TableError, match=rf"{field} .*--replace"):
        profile_unit(unit, FAKE, "auto", [1], tmp_path, sampling=FAST)
    assert len(read_table(path).rows) == 2
    replaced = profile_unit(unit, FAKE, "auto", [1], tmp_path, sampling=FAST, replace=True)
    assert [row.batch for row in replaced.rows] == [1]


def test_the_command_measures_given_batch_sizes(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["partition", "profile", "fake", "--units", "fake:a", "--tables", str(tmp_path)]
    assert main([*begin, "--batches", "6", "3", "--samples", "1"]) == 0
    assert [row.batch for row in read_table(table_path(tmp_path, "fake", "fake:a", "auto")).rows] == [3, 6]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*begin, "--batches", "6", "--max-batch", "8"])
    assert "not allowed with argument --batches" in capsys.readouterr().err


def test_a_table_is_copied_to_equal_units_alone(
    tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(table_path(tmp_path, "fake", "fake:a", "auto"), table("fake:a", 2.0))
    begin = ["partition", "table", "fake", "--tables", str(tmp_path)]
    assert main([*begin, "--copy-to", "fake:a,fake:b,fake:c"]) == 0
    assert capsys.readouterr().out.count("fake on fake:") == 3
    for name in ("fake:b", "fake:c"):
        copy = read_table(table_path(tmp_path, "fake", name, "auto"))
        assert (copy.unit, copy.predict_ms(1), copy.provenance["copied_from"]) == (name, 2.0, "fake:a")
    assert main(["partition", "plan", "fake", "--tables", str(tmp_path), "--batch", "3"]) == 0  # they are used together

    def identity(unit: Unit, precision: str) -> str:
        return f"{unit.name}; {precision}; version 1"

    monkeypatch.setattr(FakeExecutor, "identity", staticmethod(identity))
    assert main([*begin, "--units", "fake:a", "--copy-to", "fake:d"]) == 1
    assert "--copy-to fake:d: it is 'fake:d; auto; version 1', but the table of fake:a" in capsys.readouterr().err
    assert not table_path(tmp_path, "fake", "fake:d", "auto").exists()
    assert main([*begin, "--copy-to", "fake:d"]) == 2
    assert "--copy-to needs one unit" in capsys.readouterr().err


def test_the_command_measures_transfers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["partition", "io", "fake", "--units"]
    assert main([*begin, "fake:a/max_batch=8", "--batch", "2", "--max-batch", "12", "--increment", "4"]) == 0
    lines = list(csv.reader(capsys.readouterr().out.splitlines(), delimiter="|"))
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines if len(line) > 5][2:]
    assert [(line[0], line[1], line[3]) for line in cells[:2]] == [("2", "0.2", "0.1"), ("6", "0.6", "0.3")]
    assert (cells[2][0], cells[2][-1]) == ("10", "ran out of memory: 10 images do not fit")
    assert main([*begin, "cpu:1", "--batch", "4", "--max-batch", "2"]) == 2
    assert "--max-batch is 2" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom multi_dnn_ros.cli.main import build_parser\n"
        "build_parser().parse_args(['partition', 'profile', 'm', '--units', 'cpu:1,cuda:0', '--max-batch', '4'])\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_removing_rows_keeps_the_type_of_the_table() -> None:
    assert isinstance(table("fake:a", 1.0).without([1]), BatchTable)
