"""The figures of the demo, from a recording with known values."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.serialization import serialize_message
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message, truth_message
from multi_dnn_ros.demo.recorded_frames import Stream
from multi_dnn_ros.demo.report import score_and_draw
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.replay import msgtype_of
from multi_dnn_ros.ros.result_messages import (
    detections_message,
    label_info_message,
    lane_points_message,
    mask_message,
)
from multi_dnn_ros.ros.result_messages import image_message as mono_message
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


def record(folder: Path, *, silent: tuple[str, ...] = (), skip: int = 0) -> tuple[Path, str, str, tuple[Stream, ...]]:
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
                write(STREAMS[0].topics["mask"], now + 30 * MS, mask_message(found, header))
            for stream, delay_ms in zip(STREAMS[1:], (40, 50), strict=True):
                if stream.dnn not in silent and not (stream.dnn == "object" and index < skip):
                    message = detections_message(perfect(scene, stream.labels), header)
                    write(stream.topics["detections"], now + delay_ms * MS, message)
        write("/diagnostics", now + 200 * MS, diagnostics(FRAMES, FRAMES - skip, skip))
    return folder, "front", "/front/image_raw", STREAMS


def test_perfect_results_score_one(tmp_path: Path) -> None:
    recorded = record(tmp_path / "demo", skip=3)
    summary = score_and_draw(*recorded)
    assert summary["silent"] == []
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
    assert summary["recorded_messages"]["/front/image_raw/compressed"] == FRAMES
    video = cv2.VideoCapture(str(tmp_path / "demo" / "overlay.mp4"))
    assert (video.get(cv2.CAP_PROP_FRAME_COUNT), video.get(cv2.CAP_PROP_FPS)) == (FRAMES, HZ)
    assert cv2.imread(str(tmp_path / "demo" / "overlay.png")).shape == (240, 320, 3)


def test_a_dnn_without_results_is_named(tmp_path: Path) -> None:
    recorded = record(tmp_path / "demo", silent=("pedestrian",))
    assert score_and_draw(*recorded)["silent"] == ["pedestrian"]
