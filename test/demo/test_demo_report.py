"""The figures of the demo, from a recording with known values."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.serialization import serialize_message
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message, truth_message
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.demo.comparison import SETS, run_both
from multi_dnn_ros.demo.drive import Demo
from multi_dnn_ros.demo.recorded_frames import Stream, recorded_frames
from multi_dnn_ros.demo.report import RecordedDrive, report
from multi_dnn_ros.models.sources import weights_file
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.replay import msgtype_of
from multi_dnn_ros.ros.result_messages import (
    detections_message,
    label_info_message,
    lane_mask_message,
    lane_points_message,
)
from multi_dnn_ros.ros.result_messages import image_message as mono_message
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.training.metrics import Truth
from multi_dnn_ros.training.scenes import LABELS, Scene, SceneGenerator
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import Detections, Lane, Lanes

FRAMES = 12
HZ = 10
MS = 1_000_000
STREAMS = (
    Stream("lane", RESULT_KINDS.get("lanes"), {name: f"/multi_dnn/front/lane/{name}" for name in ("mask", "points")}),
    Stream(
        "object",
        RESULT_KINDS.get("detections"),
        {"detections": "/multi_dnn/front/object/detections"},
        ("car", "truck"),
        "/multi_dnn/object/label_info",
    ),
    Stream(
        "pedestrian",
        RESULT_KINDS.get("detections"),
        {"detections": "/multi_dnn/front/pedestrian/detections"},
        ("pedestrian",),
        "/multi_dnn/pedestrian/label_info",
    ),
)


def perfect(scene: Scene, labels: tuple[str, ...]) -> Detections:
    """The detections of a perfect detector of these classes."""
    truth = Truth(scene.boxes, scene.class_ids).among(LABELS, labels)
    return Detections(truth.boxes, np.full(len(truth.boxes), 0.9, np.float32), truth.class_ids, labels)


def diagnostics(offered: int, published: int, overwritten: int) -> DiagnosticArray:
    values = {"offered": offered, "published": published, "pending": 0, "dropped: overwritten": overwritten}
    status = DiagnosticStatus(level=DiagnosticStatus.OK, name="multi_dnn: object on front", message="fine")
    status.values = [KeyValue(key=key, value=str(value)) for key, value in {**values, "dropped: shutdown": 0}.items()]
    return DiagnosticArray(status=[status])


def record(folder: Path, *, silent: tuple[str, ...] = (), skip: int = 0) -> RecordedDrive:
    """A recording in which all results are perfect and arrive 30 (lane), 40 and 50 ms after the image's stamp.

    silent: DNNs without any result. skip: frames at the beginning that the object DNN dropped.
    """
    drive = SceneGenerator(320, 240, 4).drive(FRAMES, HZ)
    folder.mkdir(parents=True)
    with BagWriter(folder / "bag") as writer:

        def write(topic: str, stamp_ns: int, message: object) -> None:
            writer.add_topic(topic, msgtype_of(message))
            writer.write(topic, stamp_ns, serialize_message(message))

        for stream in STREAMS[1:]:
            write(stream.label_info, 1, label_info_message(stream.labels, 0.4, Header()))
        for index in range(FRAMES):
            scene, now = drive.frame(index), (1000 + index * 1000 // HZ) * MS
            header = Header(frame_id="front")
            header.stamp.sec, header.stamp.nanosec = divmod(now, 1000 * MS)
            write("/front/image_raw/compressed", now + MS, image_message(scene.image, header, "jpeg"))
            write("/front/truth/detections", now + MS, truth_message(scene, header))
            write("/front/truth/lane_mask", now + MS, mono_message(scene.lane_mask, "mono8", header))
            line = Lane(1, np.array([[10, 200], [20, 100]], np.float32), np.zeros(3), 0.5)
            found = Lanes(scene.lane_mask, (line,))
            if "lane" not in silent:
                write(STREAMS[0].topics["points"], now + 29 * MS, lane_points_message(found, header))
                write(STREAMS[0].topics["mask"], now + 30 * MS, lane_mask_message(found, header))
            for stream, delay_ms in zip(STREAMS[1:], (40, 50), strict=True):
                if stream.dnn not in silent and not (stream.dnn == "object" and index < skip):
                    message = detections_message(perfect(scene, stream.labels), header)
                    write(stream.topics["detections"], now + delay_ms * MS, message)
        write("/diagnostics", now + 200 * MS, diagnostics(FRAMES, FRAMES - skip, skip))
    return RecordedDrive(folder, "front", "/front/image_raw", STREAMS, {"seed": 4})


def test_perfect_results_score_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = record(tmp_path / "demo", skip=3)
    assert report(recorded, 512 << 20, ended_in_time=True)["silent"] == []
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    dnns = summary["dnns"]
    assert dnns["lane"]["lane_f1"] == pytest.approx(1.0)
    assert dnns["object"]["map50"] == pytest.approx(1.0)
    assert [dnns[name]["latency_ms"]["p50"] for name in ("lane", "object", "pedestrian")] == pytest.approx([30, 40, 50])
    assert [dnns[name]["frames"] for name in ("lane", "object", "pedestrian")] == [FRAMES, FRAMES - 3, FRAMES]
    assert dnns["lane"]["rate_hz"] == pytest.approx(HZ)
    assert dnns["object"]["accounts"] == {
        "offered": FRAMES,
        "published": FRAMES - 3,
        "pending": 0,
        "dropped": {"overwritten": 3},
    }
    assert summary["node_peak_memory_bytes"] == 512 << 20
    assert summary["versions"]["torch"]
    assert summary["recorded_messages"]["/front/image_raw/compressed"] == FRAMES
    assert "mAP@0.5 1.000" in capsys.readouterr().out
    video = cv2.VideoCapture(str(tmp_path / "demo" / "overlay.mp4"))
    assert (video.get(cv2.CAP_PROP_FRAME_COUNT), video.get(cv2.CAP_PROP_FPS)) == (FRAMES, HZ)
    assert cv2.imread(str(tmp_path / "demo" / "overlay.png")).shape == (240, 320, 3)
    last = json.loads((tmp_path / "demo" / "diagnostics.json").read_text())["last"]
    assert last["object on front"]["message"] == "fine"


def test_a_dnn_without_results_is_named_as_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = record(tmp_path / "demo", silent=("pedestrian",))
    assert report(recorded, 0, ended_in_time=False)["silent"] == ["pedestrian"]
    out = capsys.readouterr().out
    assert "FAILED: no result from pedestrian" in out
    assert "was killed" in out


def test_frames_come_once_in_order_whatever_the_window(tmp_path: Path) -> None:
    recorded = record(tmp_path / "demo")
    with BagReader(tmp_path / "demo" / "bag") as bag:
        for window in (3, 50):
            seen = list(recorded_frames(bag, "front", "/front/image_raw/compressed", recorded.streams, window))
            assert [frame.stamp_ns for frame in seen] == [(1000 + k * 100) * MS for k in range(FRAMES)]
            assert all(set(frame.results) == {"lane", "object", "pedestrian"} for frame in seen)
            lane, _ = seen[0].results["lane"]
            assert isinstance(lane, Lanes)
            np.testing.assert_allclose(lane.lanes[0].points, [[10, 200], [20, 100]])


def test_sets_of_dnns_differ_in_nothing_but_the_networks() -> None:
    original, decomposed = (read_params_file(config_file(file)) for file in SETS.values())
    small = {name: dnn.model_copy(update={"model": f"{dnn.model}_small"}) for name, dnn in original.dnns.items()}
    assert decomposed == original.model_copy(update={"dnns": small})


def test_both_sets_are_run_and_listed_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driven: list[Demo] = []

    def run(demo: Demo) -> dict:
        driven.append(demo)
        demo.output.mkdir(parents=True)
        late = len(driven) * 10.0
        latency = {"p50": 20.0 + late, "p95": 40.0 + late}
        dnns = {
            "lane": {"frames": 20, "lane_f1": 0.99, "latency_ms": latency},
            "object": {"frames": 19, "map50": 0.9 - late / 1000, "latency_ms": latency},
            "pedestrian": {"frames": 18 + len(driven)},
        }
        return {"drive": {"seed": 8}, "dnns": dnns, "silent": ["pedestrian"] if len(driven) == 2 else []}

    assert run_both(Demo(tmp_path / "out", tmp_path, seconds=2.0), run) == 1
    assert [demo.output.relative_to(tmp_path).as_posix() for demo in driven] == ["out", "out/decomposed"]
    assert [demo.params_file.name for demo in driven] == list(SETS.values())
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert content["decomposed"]["object"]["map50"] == pytest.approx(0.88)
    assert content["decomposed"]["object"]["macs"] <= 0.6 * content["original"]["object"]["macs"]
    assert content["original"]["lane"]["file_bytes"] == weights_file("builtin:lane").stat().st_size  # type: ignore[union-attr]
    out = capsys.readouterr().out
    for text in ("builtin:lane_small", "mAP@0.5 0.880 (-0.010)", "40.0 (+33.3%)", "nothing to compare"):
        assert text in out
    assert "warning" not in out


@pytest.mark.parametrize(("results", "warned"), [((47, 50), True), ((150, 120), True), ((150, 145), False)])
def test_latencies_of_an_overloaded_machine_are_marked(
    results: tuple[int, int],
    warned: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = list(results)

    def run(demo: Demo) -> dict:
        demo.output.mkdir(parents=True)
        dnns = {name: {"frames": 150} for name in ("object", "pedestrian")}
        return {"drive": {"seed": 8}, "dnns": {"lane": {"frames": left.pop(0)}, **dnns}, "silent": []}

    assert run_both(Demo(tmp_path / "out", tmp_path), run) == 0
    out = capsys.readouterr().out
    assert ("repeat with a lower --rate" in out) == warned
    if warned:
        assert f"of 150 images, DNN lane has a result for {results[0]} original, {results[1]} decomposed" in out


def test_the_folder_of_the_second_drive_is_checked_before_the_first_drive(tmp_path: Path) -> None:
    (tmp_path / "decomposed").write_text("precious")
    with pytest.raises(UsageError, match=r"decomposed is a file"):
        run_both(Demo(tmp_path, tmp_path), lambda demo: pytest.fail("drove"))
    assert (tmp_path / "decomposed").read_text() == "precious"
