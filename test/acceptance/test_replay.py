"""`multi-dnn replay`: equal results each time, its options, and nothing half-written."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from bag_files import DETECTIONS, FRAMES, TOPIC, check_results, image_message, read_results, write_folder, write_mcap
from command import blocks_file, detector, multi_dnn, run_commands, succeed, values_of, write_parameters
from harness import LIMIT_S, installed
from networks import LABELS
from sensor_msgs.msg import Image

ALL = list(range(len(FRAMES)))

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blocks_file(tmp_path_factory.mktemp("model"))


def test_two_replays_write_the_same_bytes(parameters: Path, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in")
    outputs = {name: tmp_path / name for name in ("first", "second")}
    done = run_commands({name: ["replay", source, out, "--params-file", parameters] for name, out in outputs.items()})
    assert [one.returncode for one in done.values()] == [0, 0]
    results = read_results(outputs["first"])
    check_results(results[DETECTIONS], ALL)
    ((_, names),) = results["/multi_dnn/object/label_info"]
    assert [entry.class_name for entry in names.class_map] == LABELS
    assert values_of(json.loads((outputs["first"] / "summary.json").read_text()), "published") == [len(FRAMES)]
    for file in outputs["second"].iterdir():
        assert file.read_bytes() == (outputs["first"] / file.name).read_bytes(), file.name


def test_other_topics_names_and_formats(parameters: Path, tmp_path: Path) -> None:
    """Options --topic, --node, --with-input, --storage and --overlay."""
    source = write_folder(tmp_path / "in", [("/color", message) for _, message in FRAMES])
    output, pictures = tmp_path / "out", tmp_path / "pictures"
    succeed(
        "replay", source, output, "--params-file", parameters, "--topic", "front:=/color", "--node", "/robot/dnns",
        "--with-input", "--storage", "sqlite3", "--overlay", pictures,
    )  # fmt: skip
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
    succeed("replay", source, tmp_path / "out", "--params-file", file)
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
