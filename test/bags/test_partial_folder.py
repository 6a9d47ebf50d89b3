"""The temporary folder of a recording: removed if its process was killed, kept while the process writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from multi_dnn_ros.bags import BagReader, BagWriter

WRITER = """\
import sys
from multi_dnn_ros.bags import BagWriter
with BagWriter(sys.argv[1]) as writer:
    print(writer.partial, flush=True)
    input()
"""


def start(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that writes a recording until it gets a line, and its temporary folder."""
    command = [sys.executable, "-c", WRITER, str(target)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip()).parent


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_folders_of_killed_writers_are_removed_and_those_of_running_ones_kept(tmp_path: Path) -> None:
    """Several at once, so that the removal of the first killed one is not the only chance."""
    target = tmp_path / "out [1]"  # a name with characters of patterns
    running, kept = start(target)
    abandoned = []
    for _ in range(2):
        process, folder = start(target)
        assert folder.is_dir()
        process.kill()
        process.communicate()
        abandoned.append(folder)
    try:
        assert abandoned[-1].is_dir()
        with BagWriter(target):
            assert not any(folder.exists() for folder in abandoned)
            assert kept.is_dir()
        assert names(tmp_path) == {target.name, kept.name}
    finally:
        running.communicate("\n")
    assert running.returncode != 0  # the path exists already, but the recording is not lost
    assert names(tmp_path) == {target.name, f"{target.name}-2"}
    with BagReader(tmp_path / f"{target.name}-2") as bag:
        assert bag.damage == []


@pytest.mark.parametrize("other", ["out2.tmp-abcdefgh", "out.tmp-abc", "out.tmp-abcdefgh.bak", "my_out.tmp-abcdefgh"])
def test_folders_of_other_names_are_kept(tmp_path: Path, other: str) -> None:
    (tmp_path / other).mkdir()
    (tmp_path / other / "lock").touch()
    with BagWriter(tmp_path / "out"):
        pass
    assert names(tmp_path) == {"out", other}


def test_a_folder_that_was_created_just_now_and_a_link_are_kept(tmp_path: Path) -> None:
    """A writer creates its folder before the lock."""
    (tmp_path / "out.tmp-new_fold").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").touch()
    (tmp_path / "out.tmp-new_link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with BagWriter(tmp_path / "out"):
        pass
    assert names(tmp_path) == {"out", "out.tmp-new_fold", "out.tmp-new_link", "elsewhere"}
    assert names(tmp_path / "elsewhere") == {"lock"}
