"""Readers see the old file or the new one, and no temporary file is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi_dnn_ros.common.atomic_files import atomic_write


@pytest.mark.parametrize("to_disk", [False, True])
def test_the_new_file_replaces_the_old_one_at_the_end(tmp_path: Path, to_disk: bool) -> None:
    path = tmp_path / "folder" / "report.json"
    with atomic_write(path, to_disk=to_disk) as temporary:
        temporary.write_text("old")
        assert temporary.suffix == path.suffix  # by which some libraries choose the format
        assert not path.exists()
    with atomic_write(path, to_disk=to_disk) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_writers_with_the_same_process_id_use_different_files(tmp_path: Path) -> None:
    """As in two containers that share a cache folder."""
    path = tmp_path / "report.json"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def write(text: str) -> None:
        with atomic_write(path) as temporary:
            temporary.write_text(text)
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write("half")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
