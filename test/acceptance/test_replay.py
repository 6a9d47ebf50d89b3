"""``multi-dnn replay``: recordings in every form in which tools store them, its options, and nothing half-written."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from bag_files import (
    DETECTIONS,
    FRAMES,
    TOPIC,
    check_results,
    image_message,
    read_results,
    write_folder,
    write_mcap,
    write_split,
)
from command import blocks_file, detector, multi_dnn, report_of, started, values_of, wait_until, write_parameters
from harness import LIMIT_S
from mcap.writer import IndexType
from networks import LABELS
from sensor_msgs.msg import Image

ALL = list(range(len(FRAMES)))
_LEAN = {"use_statistics": False, "use_summary_offsets": False, "repeat_schemas": False, "repeat_channels": False}

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(900)]


def replay(source: Path, output: Path, parameters: Path, *options: str | Path, code: int = 0, **others: Any) -> str:
    """What the command prints to stderr, without a traceback."""
    done = multi_dnn("replay", source, output, "--params-file", parameters, *options, **others)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blocks_file(tmp_path_factory.mktemp("model"))


def changed(before: str, after: str, storage: str = "mcap") -> Callable[[Path], None]:
    """Writes a folder with another text in metadata.yaml."""

    def write(folder: Path) -> None:
        metadata = write_folder(folder, storage=storage) / "metadata.yaml"
        assert before in metadata.read_text()
        metadata.write_text(metadata.read_text().replace(before, after))

    return write


def alone(folder: Path) -> None:
    (write_folder(folder, storage="sqlite3") / "metadata.yaml").unlink()


def files_of_a_mac(folder: Path) -> None:
    write_folder(folder)
    for file in [*folder.iterdir()]:
        (folder / f"._{file.name}").write_bytes(b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(100))


def unfinished_original(folder: Path) -> None:
    """`mcap recover` leaves the recovered file, which metadata.yaml lists, beside the original."""
    write_folder(folder)
    original = write_mcap(folder / "original.mcap")
    original.write_bytes(original.read_bytes()[: original.stat().st_size * 3 // 4])


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
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])  # in the middle of the fifth of six frames
    out = tmp_path / "out"
    replay(tmp_path / "in", out, parameters, "--cluster", code=1, timeout_s=840.0)
    manifest = report_of(out / "manifest.json")["recordings"]
    (damaged,) = [name for name, entry in manifest.items() if entry["status"] == "damaged"]
    assert "cut.mcap" in manifest[damaged]["message"]
    check_results(read_results(out / damaged)[DETECTIONS], ALL[:4])
    intact = manifest.keys() - {damaged}
    assert {name.partition("/")[0] for name in intact} == set(names)
    for name in intact:
        assert (manifest[name]["status"], manifest[name]["message"]) == ("done", ""), name
        check_results(read_results(out / name)[DETECTIONS], ALL)
        assert (out / f"{name}.log").is_file()


def test_files_beside_those_of_metadata_yaml_are_named_in_one_warning(parameters: Path, tmp_path: Path) -> None:
    unfinished_original(tmp_path / "drive")
    shutil.copy(tmp_path / "drive" / "original.mcap", tmp_path / "drive" / "older.mcap")
    printed = replay(tmp_path / "drive", tmp_path / "out", parameters)
    check_results(read_results(tmp_path / "out")[DETECTIONS], ALL)
    (warning,) = [line for line in printed.splitlines() if "original.mcap" in line]
    assert "older.mcap" in warning
    assert report_of(tmp_path / "out" / "summary.json")["input_damage"] == []


def test_the_files_of_a_folder_without_metadata_are_one_recording(parameters: Path, tmp_path: Path) -> None:
    for number, part in enumerate((FRAMES[:2], FRAMES[2:])):
        write_mcap(tmp_path / "drive" / f"drive_{number}.mcap", part)
    replay(tmp_path / "drive", tmp_path / "out", parameters)
    check_results(read_results(tmp_path / "out")[DETECTIONS], ALL)


def test_a_missing_file_of_metadata_yaml_is_damage(parameters: Path, tmp_path: Path) -> None:
    changed("relative_file_paths:", "relative_file_paths:\n  - drive_1.mcap")(tmp_path / "drive")
    assert "drive_1.mcap" in replay(tmp_path / "drive", tmp_path / "out", parameters, code=1)
    check_results(read_results(tmp_path / "out")[DETECTIONS], ALL)


def test_a_topic_that_is_not_cdr_is_named(parameters: Path, tmp_path: Path) -> None:
    write_mcap(tmp_path / "mixed.mcap", others=True)
    topic = ("--topic", "front:=/viewer/image")
    (error,) = replay(tmp_path / "mixed.mcap", tmp_path / "out", parameters, *topic, code=1).splitlines()
    assert "/viewer/image" in error
    assert "foxglove.CompressedImage" in error
    assert not (tmp_path / "out").exists()


def test_two_replays_write_the_same_bytes(parameters: Path, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in")
    first, second = tmp_path / "first", tmp_path / "second"
    for output in (first, second):
        replay(source, output, parameters)
    results = read_results(first)
    check_results(results[DETECTIONS], ALL)
    ((_, names),) = results["/multi_dnn/object/label_info"]
    assert [entry.class_name for entry in names.class_map] == LABELS
    assert values_of(report_of(first / "summary.json"), "published") == [len(FRAMES)]
    for file in second.iterdir():
        assert file.read_bytes() == (first / file.name).read_bytes(), file.name


def test_other_topics_names_and_formats(parameters: Path, tmp_path: Path) -> None:
    """Options --topic, --node, --with-input, --storage and --overlay."""
    source = write_folder(tmp_path / "in", [("/color", message) for _, message in FRAMES])
    output, pictures = tmp_path / "out", tmp_path / "pictures"
    options = ("--topic", "front:=/color", "--node", "/robot/dnns", "--with-input", "--storage", "sqlite3")
    replay(source, output, parameters, *options, "--overlay", pictures)
    assert len(list(output.glob("*.db3"))) == 1
    results = read_results(output)
    check_results(results["/robot/dnns/front/object/detections"], ALL)
    assert [message for _, message in results["/color"]] == [message for _, message in FRAMES]
    drawn = [cv2.imread(str(file)) for file in sorted(pictures.iterdir())]
    assert len(drawn) == len(FRAMES)
    for picture, (_, message) in zip(drawn, FRAMES, strict=True):
        plain = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)[..., ::-1]
        assert picture.shape == plain.shape
        assert (picture != plain).any()


def test_two_cameras_and_a_bad_image(parameters: Path, tmp_path: Path) -> None:
    """A DNN gets the frames of its cameras, whatever its rate; a bad image is counted and is no failure."""
    rear = [("/rear/image_raw", message) for _, message in FRAMES[:3]]
    bad = Image(header=FRAMES[4][1].header, height=4, width=4, encoding="rgb8", step=12, data=bytes(7))
    source = write_folder(tmp_path / "in", [*FRAMES[:4], *rear, (TOPIC, bad), FRAMES[5]])
    model = parameters.with_name("yolo.onnx")
    slow = detector(model, cameras=["rear"], max_rate_hz=1.0, enable=False)
    file = write_parameters(tmp_path / "two.yaml", {"both": detector(model), "slow": slow}, cameras=["front", "rear"])
    replay(source, tmp_path / "out", file)
    results = read_results(tmp_path / "out")
    check_results(results["/multi_dnn/front/both/detections"], [0, 1, 2, 3, 5])
    check_results(results["/multi_dnn/rear/both/detections"], [0, 1, 2])
    check_results(results["/multi_dnn/rear/slow/detections"], [0, 1, 2])
    assert "/multi_dnn/front/slow/detections" not in results
    assert values_of(report_of(tmp_path / "out" / "summary.json"), "bad_image")[0] == 1


def write_noise(folder: Path, count: int) -> Path:
    """A recording of images that no compression makes small."""
    random = np.random.default_rng(0)
    images = (image_message(random.integers(0, 256, (128, 128, 3), np.uint8), number) for number in range(count))
    return write_folder(folder, [(TOPIC, image) for image in images])


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_full_disk_leaves_nothing(storage: str, parameters: Path, tmp_path: Path) -> None:
    output = tmp_path / "place" / "out"
    output.parent.mkdir()
    limited = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash"]
    options = ("--with-input", "--storage", storage)
    printed = replay(write_noise(tmp_path / "in", 40), output, parameters, *options, code=1, prefix=limited)
    assert str(output) in printed.strip().splitlines()[-1]
    assert not list(output.parent.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_replay_that_is_ended_leaves_nothing(number: signal.Signals, parameters: Path, tmp_path: Path) -> None:
    source, place, log = write_noise(tmp_path / "in", 3000), tmp_path / "place", tmp_path / "log"
    place.mkdir()
    with started(log, "replay", source, place / "out", "--params-file", parameters, "--with-input") as command:
        wait_until(lambda: list(place.rglob("*.mcap")), command)
        command.send_signal(number)
        assert command.wait(LIMIT_S) != 0
    assert "Traceback" not in log.read_text()
    assert not list(place.iterdir())
