"""`multi-dnn replay`: every form in which ROS 2 stores a recording, equal results each time, nothing half-written."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from bag_files import (
    DELAY_NS,
    FIRST_NS,
    PERIOD_NS,
    TOPIC,
    image_message,
    read_results,
    write_folder,
    write_mcap,
    write_split,
)
from command import multi_dnn
from harness import LIMIT_S, installed, stamp_ns
from networks import LABELS, Block, block_boxes, block_image, found_boxes, write_onnx
from offline import Done, run_commands, values_of, write_parameters
from sensor_msgs.msg import Image

#: What each frame of the recordings shows.
BLOCKS = [[Block(n % 4, 3 * n % 4, n % 3), Block((n + 2) % 4, n % 4, (n + 1) % 3, 200)] for n in range(6)]
FRAMES = [(TOPIC, image_message(block_image(*blocks), number)) for number, blocks in enumerate(BLOCKS)]
DETECTIONS = "/multi_dnn/front/object/detections"
#: The same frames as ROS 2 tools store them.
FORMS = [
    "mcap", "mcap again", "alone.db3", "lz4.mcap", "zstd.mcap", "split mcap", "split sqlite3",
    "zstd file", "zstd message", "without metadata",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parameter file with one DNN, `object`, that finds the blocks."""
    folder: Path = tmp_path_factory.mktemp("model")
    model = write_onnx("yolo", folder / "yolo.onnx")
    return write_parameters(folder / "robot.yaml", {"object": detector(model)})


def detector(model: Path, **parameters: Any) -> dict[str, Any]:
    """Parameters `dnn.<dnn>` of a network that finds the blocks."""
    return {"role": "object", "model": str(model), "labels": LABELS, **parameters}


@pytest.fixture(scope="module")
def replayed(parameters: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, dict[str, Path]]:
    """What `replay` said of each form of the recording, and where its results are."""
    folder: Path = tmp_path_factory.mktemp("forms")
    without = folder / "without_metadata"
    without.mkdir()
    write_mcap(without / "drive_0.mcap", FRAMES[:2])
    write_mcap(without / "drive_1.mcap", FRAMES[2:])
    sources = {
        "mcap": write_folder(folder / "mcap", FRAMES),
        "mcap again": folder / "mcap",
        "alone.db3": shutil.copy(write_folder(folder / "db", FRAMES, "sqlite3") / "db.db3", folder / "alone.db3"),
        "lz4.mcap": write_mcap(folder / "lz4.mcap", FRAMES, "lz4", chunk=1_000_000),
        "zstd.mcap": write_mcap(folder / "zstd.mcap", FRAMES, "zstd"),
        "split mcap": write_split(folder / "split_mcap", FRAMES, "mcap"),
        "split sqlite3": write_split(folder / "split_sqlite3", FRAMES, "sqlite3"),
        "zstd file": write_folder(folder / "zstd_file", FRAMES, "sqlite3", "file"),
        "zstd message": write_folder(folder / "zstd_message", FRAMES, "sqlite3", "message"),
        "without metadata": without,
    }
    assert list(sources) == FORMS
    outputs = {form: folder / f"results {form}" for form in FORMS}
    commands = {form: ["replay", sources[form], outputs[form], "--params-file", parameters] for form in FORMS}
    return run_commands(commands), outputs


def check_results(results: list[tuple[int, Any]], numbers: list[int]) -> None:
    """One result for each frame of these numbers, in order, with its stamp, recording time and boxes."""
    assert [time for time, _ in results] == [FIRST_NS + number * PERIOD_NS + DELAY_NS for number in numbers]
    for (_, message), number in zip(results, numbers, strict=True):
        assert (stamp_ns(message), message.header.frame_id) == (FIRST_NS + number * PERIOD_NS, "camera")
        assert found_boxes(message) == block_boxes(*BLOCKS[number])


@pytest.mark.parametrize("form", FORMS)
def test_every_frame_of_every_form_is_answered(form: str, replayed: tuple[Done, dict[str, Path]]) -> None:
    done, outputs = replayed
    assert done[form].returncode == 0, done[form].stderr
    results = read_results(outputs[form])
    check_results(results[DETECTIONS], list(range(len(FRAMES))))
    ((_, names),) = results["/multi_dnn/object/label_info"]
    assert [entry.class_name for entry in names.class_map] == LABELS
    assert values_of(json.loads((outputs[form] / "summary.json").read_text()), "published") == [len(FRAMES)]
    if form == "mcap again":
        for file in outputs[form].iterdir():
            assert file.read_bytes() == (outputs["mcap"] / file.name).read_bytes(), file.name


def test_other_topics_names_and_formats(parameters: Path, tmp_path: Path) -> None:
    """Options --topic, --node, --with-input, --storage and --overlay."""
    source = write_folder(tmp_path / "in", [("/color", message) for _, message in FRAMES])
    output, pictures = tmp_path / "out", tmp_path / "pictures"
    done = multi_dnn(
        "replay", source, output, "--params-file", parameters, "--topic", "front:=/color", "--node", "/robot/dnns",
        "--with-input", "--storage", "sqlite3", "--overlay", pictures,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list(output.glob("*.db3"))) == 1
    results = read_results(output)
    check_results(results["/robot/dnns/front/object/detections"], list(range(len(FRAMES))))
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
    done = multi_dnn("replay", source, tmp_path / "out", "--params-file", file)
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "out")
    check_results(results["/multi_dnn/front/both/detections"], [0, 1, 2, 3, 5])
    check_results(results["/multi_dnn/rear/both/detections"], [0, 1, 2])
    check_results(results["/multi_dnn/rear/slow/detections"], [0, 1, 2])
    assert "/multi_dnn/front/slow/detections" not in results
    assert values_of(json.loads((tmp_path / "out" / "summary.json").read_text()), "bad_image")[0] == 1


def test_an_existing_output_is_left_alone(parameters: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    done = multi_dnn("replay", write_folder(tmp_path / "in", FRAMES), output, "--params-file", parameters)
    assert done.returncode in (1, 2)
    assert str(output) in done.stderr.strip().splitlines()[-1]
    assert [file.name for file in output.iterdir()] == ["mine.txt"]


def test_truncated_recordings(parameters: Path, tmp_path: Path) -> None:
    """The messages before the damage are kept, the file is named, and the exit code is 1."""
    whole = write_mcap(tmp_path / "whole.mcap", FRAMES).read_bytes()
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole[: len(whole) * 3 // 4])  # in the middle of the fifth of six frames
    database = next(write_folder(tmp_path / "db", FRAMES, "sqlite3").glob("*.db3"))
    cut_db = tmp_path / "cut.db3"
    cut_db.write_bytes(database.read_bytes()[: database.stat().st_size * 6 // 10])
    empty = tmp_path / "empty.mcap"
    empty.touch()
    sources = {path.name: path for path in (cut, cut_db, empty)}
    outputs = {name: tmp_path / "results" / name for name in sources}
    done = run_commands({
        name: ["replay", path, outputs[name], "--params-file", parameters] for name, path in sources.items()
    })  # fmt: skip
    for name, one in done.items():
        assert one.returncode == 1, one.stderr
        assert name in one.stderr
        assert "Traceback" not in one.stderr
    check_results(read_results(outputs["cut.mcap"])[DETECTIONS], [0, 1, 2, 3])
    if outputs["cut.db3"].exists():  # a database may be lost as a whole, but yields nothing that is wrong
        results = read_results(outputs["cut.db3"])[DETECTIONS]
        check_results(results, list(range(len(results))))
    assert not outputs["empty.mcap"].exists()


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_full_disk_leaves_nothing(storage: str, parameters: Path, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(noise(number), number)) for number in range(40)])
    place = tmp_path / "place"
    place.mkdir()
    done = multi_dnn(
        "replay", source, place / "out", "--params-file", parameters, "--with-input", "--storage", storage,
        prefix=["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash"],
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert str(place / "out") in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not list(place.iterdir())


def noise(seed: int) -> np.ndarray:
    """An RGB image that no compression makes small."""
    return np.random.default_rng(seed).integers(0, 256, (128, 128, 3), dtype=np.uint8)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_replay_that_is_ended_leaves_nothing(number: signal.Signals, parameters: Path, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", [(TOPIC, image_message(noise(n), n)) for n in range(3000)])
    place = tmp_path / "place"
    place.mkdir()
    command = [*installed("multi-dnn"), "replay", str(source), str(place / "out"), "--params-file", str(parameters)]
    with subprocess.Popen([*command, "--with-input"], stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(place.rglob("*.mcap")):
            pass
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert not list(place.iterdir())


def test_many_recordings(parameters: Path, tmp_path: Path) -> None:
    """--cluster: a damaged recording stops no other one."""
    pytest.importorskip("ray")
    drives, results = tmp_path / "drives", tmp_path / "results"
    drives.mkdir()
    whole = write_mcap(drives / "whole.mcap", FRAMES)
    (drives / "cut.mcap").write_bytes(whole.read_bytes()[:150_000])
    done = multi_dnn("replay", drives, results, "--cluster", "--params-file", parameters)
    assert done.returncode == 1, done.stderr
    manifest = json.loads((results / "manifest.json").read_text())["recordings"]
    assert "done" in manifest["whole"].values()
    assert "damaged" in manifest["cut"].values()
    check_results(read_results(results / "whole")[DETECTIONS], list(range(len(FRAMES))))
    assert (results / "whole.log").is_file()
