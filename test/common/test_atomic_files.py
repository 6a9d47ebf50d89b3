"""Readers see the old file or the new one, and no temporary file is left."""

from __future__ import annotations

import os
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


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    """Replacing /dev/null by a file, which root may do, breaks every other program."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as temporary:
        assert temporary.suffix == ".json"
        temporary.write_text("content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_to_an_open_file_stays(tmp_path: Path) -> None:
    """As /dev/stdout is, if the output of the command goes into a file."""
    opened = (tmp_path / "output.txt").open("w")
    link = tmp_path / "stdout"
    link.symlink_to(f"/proc/self/fd/{opened.fileno()}")
    with opened, atomic_write(link) as temporary:
        temporary.write_text("content")
    assert link.is_symlink()
    assert (tmp_path / "output.txt").read_text() == "content"


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
