"""`multi-dnn benchmark compare`: verdicts, what is not comparable, files that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from board_records import mix, record, trial, write
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.comparison import SAME, Row, compare, read_measured
from multi_dnn_ros.benchmark.quantities import CORES, QUANTITIES
from multi_dnn_ros.cli.main import main

RESULTS = Path(__file__).resolve().parents[2] / "results"


def run(*arguments: object) -> int:
    try:
        return main(["benchmark", "compare", *map(str, arguments)])
    except SystemExit as ended:
        return int(ended.code or 0)


@given(st.sampled_from(QUANTITIES), st.floats(1e-6, 1e9), st.floats(1e-6, 1e9))
def test_a_verdict_has_the_direction_of_its_figure(quantity: Any, first: float, second: float) -> None:
    row, mirrored = Row("case", quantity, first, second), Row("case", quantity, second, first)
    opposite = {"better": "worse", "worse": "better", "same": "same", "": ""}
    if abs(row.ratio / (1 + SAME) - 1) > 1e-9 and abs(row.ratio * (1 + SAME) - 1) > 1e-9:
        assert mirrored.verdict == opposite[row.verdict]
    if not quantity.better:
        assert row.verdict == ""
        assert row.worse_by is None
    elif second > 1.06 * first:
        assert row.verdict == ("better" if quantity.better == "higher" else "worse")
    elif second > first:
        assert row.verdict in ("same", "better" if quantity.better == "higher" else "worse")


def test_two_boards_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "first.json", record({"builtin": mix(20.0), "small": mix(50.0), "heavy_gpu": mix(None)}))
    faster = mix(40.0, trials=[trial(40.0, cpu_ms_per_result=20.0, power_w=5.0)], long=0)
    second = write(
        tmp_path / "second.json",
        record({"builtin": faster, "small": mix(50.0, size=(1280, 720)), "heavy_gpu": mix(9.0), "mixed": mix()}),
    )
    page = tmp_path / "compare.html"
    assert run(first, second, "--output", page) == 0
    text = capsys.readouterr().out
    cells = {
        tuple(part.strip() for part in line.split("|")[1:3]): [part.strip() for part in line.split("|")[3:7]]
        for line in text.splitlines()
        if line.startswith("|")
    }
    assert cells["builtin", "highest rate per camera, Hz"] == ["20", "40", "2.00", "better"]
    assert cells["builtin", "CPU time per result, ms"] == ["16", "20", "1.25", "worse"]
    assert cells["builtin", "latency p99, ms"] == ["30", "30", "1.00", "same"]
    assert cells["builtin", "CPU cores busy"][-1] == "-"
    assert {case for case, _ in cells} == {"case", "builtin"} | {case for case, _ in cells if case.startswith("-")}
    assert "not compared: small: image size is 640x480 and 1280x720" in text
    assert "not compared: heavy_gpu: the first file has no figures: does not fit: needs a GPU" in text
    assert "not compared: mixed: only in the second file" in text
    assert "not compared: builtin, power: not measured in the first file" in text
    html = page.read_text()
    assert '<td class="better">better</td>' in html
    assert "image size is 640x480 and 1280x720" in html


def test_the_same_file_twice_has_no_difference(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", record())
    found = compare(read_measured(path), read_measured(path))
    assert found.rows
    assert not found.not_comparable
    assert {row.verdict for row in found.rows if row.quantity != CORES} == {"same"}
    assert run(path, path, "--fail-above", "1") == 0


def test_fail_above_decides_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "first.json", record({"builtin": mix(40.0)}))
    second = write(tmp_path / "second.json", record({"builtin": mix(35.0)}))
    assert run(first, second) == 0
    assert run(first, second, "--fail-above", "1.2") == 0
    assert run(second, first, "--fail-above", "1.1") == 0  # better
    capsys.readouterr()
    assert run(first, second, "--fail-above", "1.1") == 1
    assert "worse than allowed: builtin, highest rate per camera: by a factor of 1.14" in capsys.readouterr().out
    assert run(first, second, "--fail-above", "1.1", "--figures", "cpu_ms_per_result") == 0
    assert run(first, second, "--fail-above", "1.1", "--figures", "energy_j_per_result") == 1
    assert "--fail-above: no figure can be compared" in capsys.readouterr().err


def test_a_mix_that_the_second_file_could_not_serve_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "first.json", record({"builtin": mix(40.0), "small": mix(50.0)}))
    second = tmp_path / "second.json"
    for lost in (
        mix(None, status="not_served", reason="too slow", trials=[trial(0.5, False)]),
        mix(None, status="failed", reason="no memory", dnns={}),  # before its DNNs were known
    ):
        write(second, record({"builtin": mix(40.0), "small": lost}))
        assert run(first, second) == 0
        assert run(second, first, "--fail-above", "1.1") == 0  # served now
        capsys.readouterr()
        assert run(first, second, "--fail-above", "1.1") == 1
        assert "worse than allowed: small: the second file has no figures" in capsys.readouterr().out
    for other in ({"builtin": mix(40.0), "small": mix(None, size=(1280, 720))}, {"builtin": mix(40.0)}):
        write(second, record(other))
        assert run(first, second, "--fail-above", "1.1") == 0


def test_another_runtime_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "first.json", record())
    second = write(tmp_path / "second.json", record(runtime="ROS 2 jazzy rmw_cyclonedds_cpp"))
    assert run(first, second, "--output", tmp_path / "c.html") == 0
    text = capsys.readouterr().out
    assert "nothing can be compared" in text
    assert "the ROS runtime is ROS 2 jazzy rmw_fastrtps_cpp in the first" in text
    assert "ROS 2 jazzy rmw_cyclonedds_cpp in the second" in text
    assert "Nothing can be compared." in (tmp_path / "c.html").read_text()
    assert run(first, second, "--fail-above", "1.1") == 1


def test_files_of_benchmark_host_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = RESULTS / "host_ros2_cyclone.json", tmp_path / "second.json"
    assert run(first, RESULTS / "host_ros2_fast.json") == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("| null") and "CPU time per result" in line)
    assert [part.strip() for part in row.split("|")[3:7]] == ["6.5", "7.89", "1.22", "worse"]
    second.write_text(json.dumps({**json.loads(first.read_text()), "runtime": "rmw_zenoh_cpp"}))
    assert run(first, second) == 0
    assert "everything: the ROS runtime is rclpy in the first file and rmw_zenoh_cpp in the second" in (
        capsys.readouterr().out
    )


def without(content: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in keys}


def test_other_files_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.json", record())
    content = json.loads(good.read_text())
    damaged = json.loads(good.read_text())
    damaged["mixes"]["builtin"]["trials"][0]["rate_hz"] = "fast"
    long = json.loads(good.read_text())
    long["mixes"]["builtin"]["long"] = 3
    shutil.copy(RESULTS / "demo.json", tmp_path / "demo.json")
    bad = {
        "truncated.json": (good.read_text()[:300], ": not JSON, or truncated"),
        "empty.json": ("", ": not JSON, or truncated"),
        "deep.json": ("[" * 100_000, ": not JSON, or truncated"),
        "list.json": ("[]", "holds list, not an object; expected figures of `multi-dnn benchmark`"),
        "other.json": ("{}", "was not written by `multi-dnn benchmark`; only files of `multi-dnn benchmark board` and"),
        "load.json": ('{"scenario": "load"}', "was written by `multi-dnn benchmark load`; only files of"),
        "demo.json": ((tmp_path / "demo.json").read_text(), "files of `multi-dnn benchmark board`"),
        "newer.json": (
            json.dumps({**content, "schema_version": 2}),
            "has schema version 2; this version of the package",
        ),
        "unversioned.json": (json.dumps(without(content, "schema_version")), "has schema version None"),
        "part.json": (json.dumps(without(content, "mixes")), "is damaged: mixes: Field required"),
        "damaged.json": (json.dumps(damaged), "is damaged: mixes.builtin.trials.0.rate_hz: Input should be a valid"),
        "long.json": (json.dumps(long), "is damaged: mixes.builtin: Value error, long is 3, but there are 3 trials"),
        "nan.json": (good.read_text().replace("1.5", "NaN"), "is damaged: mixes.builtin.trials.0.cpu_cores"),
        "host.json": ('{"scenario": "host"}', "is damaged, or of another version: runtime: Field required"),
    }
    for name, (text, expected) in bad.items():
        (tmp_path / name).write_text(text)
        for pair in ((good, tmp_path / name), (tmp_path / name, good)):
            assert run(*pair) == 2, name
            error = capsys.readouterr().err
            assert expected in error, name
            assert name in error
            assert error.count("\n") == 1, error
    binary = tmp_path / "binary.json"
    binary.write_bytes(bytes(range(256)))
    assert run(good, binary) == 2
    assert run(good, tmp_path) == 2
    assert run(good, tmp_path / "none.json") == 2
    assert "none.json: cannot be read (No such file or directory)" in capsys.readouterr().err
    assert run(good, RESULTS / "host_heavy_gpu_h200_raw.json") == 2
    assert "both must be of the same scenario" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--fail-above", "0.9"], "--fail-above is 0.9; it must be at least 1"),
        (
            ["--fail-above", "1.1", "--figures", "speed"],
            "--figures speed: not a figure that can be better or worse; allowed: rate_hz",
        ),
        (["--figures", "rate_hz"], "give --fail-above, too"),
        (["--output", "."], "which is a folder"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", record())
    assert run(path, path, *options) == 2
    assert text in capsys.readouterr().err


def test_a_compared_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", record())
    (tmp_path / "b.json").symlink_to(path)
    for output in (path, tmp_path / "b.json"):
        assert run(path, path, "--output", output) == 2
        assert "one of the files to compare" in capsys.readouterr().err
    assert json.loads(path.read_text())["scenario"] == "board"
