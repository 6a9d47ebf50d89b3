"""Estimates of the remaining time for configuring."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi_dnn_ros.common.progress_lines import DnnReady
from multi_dnn_ros.serving.host import Progress
from multi_dnn_ros.serving.progress import ProgressReport, keep_durations, read_durations


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_an_earlier_run_the_mean_of_the_ready_dnns_is_used() -> None:
    clock, reported = Clock(), list[Progress]()
    report = ProgressReport(("a", "b", "c"), {}, reported.append, clock)
    report("loading")
    clock.now = 10.0
    report(DnnReady("a is ready"))
    clock.now = 14.0
    report("compiling job 3 of 4")
    assert reported == [
        Progress("loading", 0, 3, None, "a"),
        Progress("a is ready", 1, 3, 20.0, "a"),
        Progress("compiling job 3 of 4", 1, 3, 16.0, "b"),
    ]
    assert type(reported[1].text) is str  # it is sent to another process


def test_an_earlier_run_is_used_and_the_estimate_is_never_negative() -> None:
    clock, reported = Clock(), list[Progress]()
    report = ProgressReport(("a", "b"), {"a": 5.0, "b": 7.0, "rest": 1.0}, reported.append, clock)
    report("loading")
    clock.now = 9.0
    report("still loading")
    report(DnnReady("a is ready"))
    report(DnnReady("b is ready"))
    assert [entry.left_s for entry in reported] == [13.0, 8.0, 8.0, 1.0]
    clock.now = 9.5
    report("first run")
    assert [entry.dnn for entry in reported] == ["a", "a", "a", "b", ""]
    assert report.finished() == {"a": 9.0, "b": 0.0, "rest": 0.5}


def test_an_earlier_run_of_other_dnns_is_not_used() -> None:
    report = ProgressReport(("a",), {"b": 5.0, "rest": 1.0}, lambda progress: None)
    assert report.left_s() is None


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": "x"}', '{"a": null}', "\udcff"])
def test_a_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "durations.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert read_durations(path) == {}


def test_durations_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "durations.json"
    assert read_durations(path) == {}
    keep_durations(path, {"a": 1.5, "rest": 0.25})
    assert read_durations(path) == {"a": 1.5, "rest": 0.25}


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    keep_durations(tmp_path / "folder" / "durations.json", {"a": 1.5})
