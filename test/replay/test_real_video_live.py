"""A real road through the live graph with a public detector; skips itself where ../shared is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from live_session import LiveSession

from multi_dnn_ros.demo.recorded_frames import lanes
from multi_dnn_ros.training.metrics import LaneScore

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
VIDEO = DATA / "road" / "solidWhiteRight.mp4"
DETECTOR = DATA / "models" / "FastestDet.onnx"
RATE_HZ, VIDEO_HZ = 5, 25
FIRST, COUNT = 112, 50

pytestmark = [
    pytest.mark.skipif(not (VIDEO.exists() and DETECTOR.exists()), reason="needs ../shared/data"),
    pytest.mark.long,  # the quick counterpart, with a generated road: test/demo/test_demo_live
]

PARAMETERS = """\
/**:
  ros__parameters:
    device: cpu
    cameras: [front]
    camera: {{front: {{qos: reliable, depth: 10}}}}
    dnns: [lane, object, pedestrian]
    dnn:
      lane: {{role: lane, model: "builtin:lane"}}
      object:
        {{role: object, model: "{model}", decoder: grid, color: bgr, labels: ["{names}"],
         keep: [car, truck, bus], score_threshold: 0.5}}
      pedestrian:
        {{role: pedestrian, model: "{model}", decoder: grid, color: bgr, labels: ["{names}"],
         keep: [person], score_threshold: 0.5}}
"""


def frame_of(message: Any) -> int:
    """Index in the video: the camera stamps frames with the video's own time."""
    return round((message.header.stamp.sec + message.header.stamp.nanosec * 1e-9) * VIDEO_HZ)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> LiveSession:
    folder = tmp_path_factory.mktemp("video")
    parameters = folder / "parameters.yaml"
    parameters.write_text(PARAMETERS.format(model=DETECTOR, names=DETECTOR.parent / "coco.names"))
    camera = [str(VIDEO), "--rate", str(RATE_HZ), "--stamps", "source"]
    camera += ["--start-at", str(FIRST), "--count", str(COUNT)]
    return LiveSession().run(camera, ["--params-file", str(parameters)], folder)


def test_frames_are_accounted_for(live: LiveSession) -> None:
    for dnn in ("lane", "object", "pedestrian"):
        counted = live.accounts(dnn)
        assert counted["offered"] == counted["published"] + sum(counted["dropped"].values())
        assert counted["offered"] == COUNT
        assert counted["published"] >= COUNT // 3
    for messages in live.outputs.values():
        frames = [frame_of(message) for message in messages]
        assert frames == sorted(set(frames))
        assert set(frames) <= set(range(FIRST, FIRST + COUNT))


def test_cars_are_on_the_road(live: LiveSession) -> None:
    """Vehicles stand on the carriageway ahead, so their lower edges are below the horizon and above the bonnet."""
    messages = live.outputs["object/detections"]
    boxes = [detection.bbox for message in messages for detection in message.detections]
    with_cars = sum(bool(message.detections) for message in messages)
    assert with_cars >= 0.5 * len(messages)
    lower_edges = np.array([(box.center.position.x, box.center.position.y + box.size_y / 2) for box in boxes])
    on_road = (lower_edges[:, 1] > 300) & (lower_edges[:, 1] < 480)
    assert on_road.mean() >= 0.9


def test_nobody_walks_on_the_highway(live: LiveSession) -> None:
    found = sum(len(message.detections) for message in live.outputs["pedestrian/detections"])
    assert found <= 0.1 * len(live.outputs["pedestrian/detections"])


def test_lanes_are_where_a_public_network_sees_them(live: LiveSession) -> None:
    """Compared with the masks of another network, on frames that ours was not trained on."""
    points = {frame_of(message): message for message in live.outputs["lane/points"]}
    score = LaneScore()
    compared = 0
    for mask in live.outputs["lane/mask"]:
        reference = DATA / "road" / "lane_masks" / f"solidWhiteRight_{frame_of(mask):04d}.png"
        if reference.exists() and frame_of(mask) in points:
            found = lanes(mask, points[frame_of(mask)])
            score.add(found.mask, cv2.imread(str(reference), cv2.IMREAD_GRAYSCALE))
            compared += 1
    assert compared >= COUNT // 12
    assert score.f1 >= 0.6
