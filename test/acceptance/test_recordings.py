"""``multi-dnn replay`` of recordings in every form in which tools store them: which files are read, what is damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bag_files import (
    DETECTIONS,
    FRAMES,
    TOPIC,
    check_results,
    read_results,
    write_folder,
    write_mcap,
    write_split,
)
from command import assert_one_error, blocks_file, multi_dnn, succeed
from mcap.writer import IndexType

ALL = list(range(len(FRAMES)))
_LEAN = {"use_statistics": False, "use_summary_offsets": False, "repeat_schemas": False, "repeat_channels": False}

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blocks_file(tmp_path_factory.mktemp("model"))


def change(folder: Path, before: str, after: str) -> None:
    """Replace a text of metadata.yaml."""
    text = (folder / "metadata.yaml").read_text()
    assert before in text
    (folder / "metadata.yaml").write_text(text.replace(before, after))


def changed(before: str, after: str, storage: str = "mcap") -> Callable[[Path], None]:
    return lambda folder: change(write_folder(folder, storage=storage), before, after)


def alone(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy(write_folder(folder.parent.parent / "db", storage="sqlite3") / "db.db3", folder / "alone.db3")


def files_of_a_mac(folder: Path) -> None:
    write_folder(folder)
    for file in [*folder.iterdir()]:
        (folder / f"._{file.name}").write_bytes(b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(100))


def unfinished_original(folder: Path) -> None:
    """`mcap recover` leaves the recovered file, which metadata.yaml lists, beside the original."""
    write_folder(folder)
    original = write_mcap(folder / "original.mcap")
    original.write_bytes(original.read_bytes()[: original.stat().st_size * 3 // 4])


def finished_original(folder: Path) -> None:
    write_folder(folder)
    write_mcap(folder / "original.mcap")


INTACT: dict[str, Callable[[Path], Any]] = {
    "mcap": write_folder,
    "alone": alone,
    "lz4": lambda folder: write_mcap(folder / "lz4.mcap", FRAMES, "lz4", chunk_size=1_000_000),
    "zstd": lambda folder: write_mcap(folder / "zstd.mcap", FRAMES, "zstd"),
    "split mcap": lambda folder: write_split(folder, FRAMES, "mcap"),
    "split sqlite3": lambda folder: write_split(folder, FRAMES, "sqlite3"),
    "zstd file": lambda folder: write_folder(folder, FRAMES, "sqlite3", "file"),
    "zstd message": lambda folder: write_folder(folder, FRAMES, "sqlite3", "message"),
    "empty profile": lambda folder: write_mcap(folder / "merged.mcap", profile=""),  # as `mcap merge` writes it
    "other encodings": lambda folder: write_mcap(folder / "mixed.mcap", others=True),
    "without summary": lambda folder: write_mcap(folder / "lean.mcap", index_types=IndexType.NONE, **_LEAN),
    "no storage identifier": changed("storage_identifier: mcap", "storage_identifier: ''"),
    "newer metadata": changed("version: 9", "version: 12", "sqlite3"),
    "edited QoS": changed("offered_qos_profiles: []", "offered_qos_profiles: [{depth: 5, reliability: best_effort}]"),
    "misspelt metadata": changed("  duration:", "  durations:", "sqlite3"),
    "other topics in metadata": changed(f"name: {TOPIC}", "name: /renamed"),
    "files of a Mac": files_of_a_mac,
    "unfinished original": unfinished_original,
    "finished original": finished_original,
}


@pytest.mark.parametrize(
    "names",
    [["zstd message", "split mcap", "without summary"], pytest.param(list(INTACT), marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_intact_recordings_are_not_called_damaged_and_no_frame_comes_twice(
    names: list[str], parameters: Path, tmp_path: Path
) -> None:
    """All of them at once, as --cluster lists what each one is; a damaged one among them stops no other one."""
    for name in names:
        INTACT[name](tmp_path / "in" / name)
    cut = write_mcap(tmp_path / "in" / "cut" / "cut.mcap")
    cut.write_bytes(cut.read_bytes()[:150_000])
    out = tmp_path / "out"
    done = multi_dnn("replay", tmp_path / "in", out, "--cluster", "--params-file", parameters, timeout_s=840.0)
    assert done.returncode == 1, done.stderr
    manifest = json.loads((out / "manifest.json").read_text())["recordings"]
    damaged = {name for name, entry in manifest.items() if entry["status"] == "damaged"}
    assert {name.partition("/")[0] for name in damaged} == {"cut"}
    intact = manifest.keys() - damaged
    assert {name.partition("/")[0] for name in intact} == set(names)
    for name in intact:
        assert (manifest[name]["status"], manifest[name]["message"]) == ("done", ""), name
        check_results(read_results(out / name)[DETECTIONS], ALL)
        assert (out / f"{name}.log").is_file()


def test_files_beside_those_of_metadata_yaml_are_named_in_one_warning(parameters: Path, tmp_path: Path) -> None:
    unfinished_original(tmp_path / "drive")
    shutil.copy(tmp_path / "drive" / "original.mcap", tmp_path / "drive" / "older.mcap")
    done = succeed("replay", tmp_path / "drive", tmp_path / "out", "--params-file", parameters)
    check_results(read_results(tmp_path / "out")[DETECTIONS], ALL)
    (warning,) = [line for line in done.stderr.splitlines() if "original.mcap" in line]
    assert "older.mcap" in warning
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["input_damage"] == []


def test_the_files_of_a_folder_without_metadata_are_one_recording(parameters: Path, tmp_path: Path) -> None:
    for number, part in enumerate((FRAMES[:2], FRAMES[2:])):
        write_mcap(tmp_path / "drive" / f"drive_{number}.mcap", part)
    succeed("replay", tmp_path / "drive", tmp_path / "out", "--params-file", parameters)
    check_results(read_results(tmp_path / "out")[DETECTIONS], ALL)


def test_a_missing_file_of_metadata_yaml_is_damage(parameters: Path, tmp_path: Path) -> None:
    changed("relative_file_paths:", "relative_file_paths:\n  - drive_1.mcap")(tmp_path / "drive")
    done = multi_dnn("replay", tmp_path / "drive", tmp_path / "out", "--params-file", parameters)
    assert done.returncode == 1
    assert "drive_1.mcap" in done.stderr
    check_results(read_results(tmp_path / "out")[DETECTIONS], ALL)


def test_a_topic_that_is_not_cdr_is_named(parameters: Path, tmp_path: Path) -> None:
    write_mcap(tmp_path / "mixed.mcap", others=True)
    options = ("--params-file", parameters, "--topic", "front:=/viewer/image")
    done = multi_dnn("replay", tmp_path / "mixed.mcap", tmp_path / "out", *options)
    assert_one_error(done, "/viewer/image", "foxglove.CompressedImage")
    assert not (tmp_path / "out").exists()
