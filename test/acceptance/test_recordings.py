"""``multi-dnn replay`` of recordings that real tools write: which files are read, and what counts as damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command import assert_one_error, multi_dnn
from mcap.writer import CompressionType, IndexType, Writer
from rosbags.rosbag2 import StoragePlugin
from small_recordings import IMAGE, SECOND_NS, TOPIC, TYPES, image, stamps, write_recording

FRAMES = 4
RESULTS = "/multi_dnn/front/object/detections"
DEFINITION, _ = TYPES.generate_msgdef(IMAGE, ros_version=2)


def write_mcap(
    path: Path,
    *,
    profile: str = "ros2",
    others: bool = False,
    **options: object,
) -> Path:
    """An MCAP file as other tools than a ROS 2 recorder write it. others: also channels that are not CDR."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file, **options)  # type: ignore[arg-type]
        writer.start(profile=profile, library="a test")
        schema = writer.register_schema(IMAGE, "ros2msg", DEFINITION.encode())
        camera = writer.register_channel(TOPIC, "cdr", schema)
        if others:
            proto = writer.register_schema("foxglove.CompressedImage", "protobuf", b"\n\x03abc")
            status = writer.register_channel("/viewer/image", "protobuf", proto)
            text = writer.register_schema("Status", "jsonschema", b"{}")
            plain = writer.register_channel("/status", "json", text)
            bare = writer.register_channel("/bytes", "", 0)
            for channel in (status, plain, bare):
                writer.add_message(channel, 1000 * SECOND_NS, b"{}", 1000 * SECOND_NS)
        for number in range(FRAMES):
            stamp_ns = (1000 + number) * SECOND_NS
            writer.add_message(camera, stamp_ns, image(number), stamp_ns)
        writer.finish()
    return path


def changed(folder: Path, before: str, after: str) -> None:
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    assert before in text
    metadata.write_text(text.replace(before, after))


def empty_profile(folder: Path) -> None:
    write_mcap(folder / "merged.mcap", profile="")  # as `mcap merge` writes it


def other_encodings(folder: Path) -> None:
    write_mcap(folder / "mixed.mcap", others=True)


def without_summary(folder: Path) -> None:
    write_mcap(
        folder / "lean.mcap", index_types=IndexType.NONE, use_statistics=False, use_summary_offsets=False,
        repeat_schemas=False, repeat_channels=False, compression=CompressionType.NONE,
    )  # fmt: skip


def no_storage_identifier(folder: Path) -> None:
    changed(write_recording(folder, FRAMES), "storage_identifier: mcap", "storage_identifier: ''")


def newer_metadata(folder: Path) -> None:
    changed(write_recording(folder, FRAMES, StoragePlugin.SQLITE3), "version: 9", "version: 12")


def edited_qos(folder: Path) -> None:
    qos = "offered_qos_profiles: [{history: keep_last, depth: 5, reliability: best_effort}]"
    changed(write_recording(folder, FRAMES), "offered_qos_profiles: []", qos)


def misspelt_metadata(folder: Path) -> None:
    changed(write_recording(folder, FRAMES, StoragePlugin.SQLITE3), "  duration:", "  durations:")


def other_topics_in_metadata(folder: Path) -> None:
    changed(write_recording(folder, FRAMES), f"name: {TOPIC}", "name: /renamed")


def files_of_a_mac(folder: Path) -> None:
    write_recording(folder, FRAMES)
    for file in [*folder.iterdir()]:
        (folder / f"._{file.name}").write_bytes(b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(100))


def unfinished_original(folder: Path) -> None:
    """`mcap recover` leaves the recovered file, which the owner lists, beside the original."""
    write_recording(folder, FRAMES)
    original = write_mcap(folder / "original.mcap", chunk_size=10_000)
    original.write_bytes(original.read_bytes()[: original.stat().st_size * 3 // 4])


def finished_original(folder: Path) -> None:
    write_recording(folder, FRAMES)
    write_mcap(folder / "original.mcap")


INTACT: list[Callable[[Path], None]] = [
    empty_profile, other_encodings, without_summary, no_storage_identifier, newer_metadata, edited_qos,
    misspelt_metadata, other_topics_in_metadata, files_of_a_mac, unfinished_original, finished_original,
]  # fmt: skip


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("parameters") / "one_dnn.yaml"
    file.write_text("/**:\n  ros__parameters:\n    dnns: [object]\n")
    return file


@pytest.mark.timeout(900)
def test_intact_recordings_are_not_called_damaged_and_no_frame_comes_twice(parameters: Path, tmp_path: Path) -> None:
    """All of them at once, as --cluster lists what each one is."""
    for make in INTACT:
        make(tmp_path / "in" / make.__name__)
    done = multi_dnn(
        "replay", tmp_path / "in", tmp_path / "out", "--cluster", "--params-file", parameters, timeout_s=840.0
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())["recordings"]
    found = {
        name: (entry["status"], entry["message"], [*stamps(tmp_path / "out" / name, RESULTS)])
        for name, entry in manifest.items()
    }
    assert found == {name: ("done", "", [*range(FRAMES)]) for name in manifest}
    assert {name.partition("/")[0] for name in manifest} == {make.__name__ for make in INTACT}
    assert done.returncode == 0, done.stderr


def test_files_beside_those_of_metadata_yaml_are_named_in_one_warning(parameters: Path, tmp_path: Path) -> None:
    unfinished_original(tmp_path / "drive")
    shutil.copy(tmp_path / "drive" / "original.mcap", tmp_path / "drive" / "older.mcap")
    done = multi_dnn("replay", tmp_path / "drive", tmp_path / "out", "--params-file", parameters)
    assert done.returncode == 0, done.stderr
    assert [*stamps(tmp_path / "out", RESULTS)] == [*range(FRAMES)]
    warnings = [line for line in done.stderr.splitlines() if "original.mcap" in line]
    assert len(warnings) == 1
    assert "older.mcap" in warnings[0]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["input_damage"] == []


def test_a_missing_file_of_metadata_yaml_is_damage(parameters: Path, tmp_path: Path) -> None:
    write_recording(tmp_path / "drive", FRAMES)
    changed(tmp_path / "drive", "relative_file_paths:", "relative_file_paths:\n  - drive_1.mcap")
    done = multi_dnn("replay", tmp_path / "drive", tmp_path / "out", "--params-file", parameters)
    assert done.returncode == 1
    assert "drive_1.mcap" in done.stderr
    assert [*stamps(tmp_path / "out", RESULTS)] == [*range(FRAMES)]


def test_a_topic_that_is_not_cdr_is_named(parameters: Path, tmp_path: Path) -> None:
    write_mcap(tmp_path / "mixed.mcap", others=True)
    done = multi_dnn(
        "replay",
        tmp_path / "mixed.mcap",
        tmp_path / "out",
        "--params-file",
        parameters,
        "--topic",
        "front:=/viewer/image",
    )
    assert_one_error(done, "/viewer/image", "foxglove.CompressedImage")
    assert not (tmp_path / "out").exists()
