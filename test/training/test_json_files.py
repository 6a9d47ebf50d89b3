"""JSON files that may be damaged or of another origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.training.json_files import read_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text('{"scenario": "cpu"}')
    assert read_json_object(path, "figures") == {"scenario": "cpu"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON, or truncated"),
        (b'{"scenario": "c', "not JSON, or truncated"),
        (b"\xff\xfe", "not JSON, or truncated"),
        (b"[" * 100_000, "not JSON, or truncated"),
        (b'{"count": %s}' % (b"1" * 5000), "not JSON, or truncated"),
        (b"[1]", "holds list, not an object"),
        (b'{"long": "%s"}' % (b"x" * 2**20), "larger than 1 MiB"),
    ],
)
def test_the_error_names_the_file_the_problem_and_what_is_expected(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=rf"figures\.json: {problem}.*; expected figures of the command$"):
        read_json_object(path, "figures of the command", CommandError, 1 << 20)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json: cannot be read \(No such file or directory\); expected figures"):
        read_json_object(tmp_path / "none.json", "figures")
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\); expected figures"):
        read_json_object(tmp_path, "figures")
