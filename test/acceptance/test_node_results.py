"""Boxes, lanes, masks, tracks, points on the ground and overlays of a generated road; the same as those of `replay`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from bag_files import TOPIC, read_results, write_folder
from command import started, succeed
from harness import ALL, LATCHED, LIMIT_S, Camera, Client, Node, pixels_of, stamp_ns
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2
from vision_msgs.msg import Detection2DArray, LabelInfo

FRAMES = 8
Box = tuple[float, float, float, float]


#: By topic, the messages of each frame in the order of the frames.
Drive = dict[str, list[Any]]


def points_of(cloud: PointCloud2) -> npt.NDArray[np.float32]:
    """(N, fields) of a cloud of float32 fields."""
    return np.frombuffer(bytes(cloud.data), np.float32).reshape(-1, len(cloud.fields))


def box_of(detection: Any) -> Box:
    """Left, top, right, bottom."""
    box = detection.bbox
    x, y = box.center.position.x, box.center.position.y
    return x - box.size_x / 2, y - box.size_y / 2, x + box.size_x / 2, y + box.size_y / 2


def iou(a: Box, b: Box) -> float:
    """Intersection over union."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(0.0, width) * max(0.0, height)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


@pytest.fixture(scope="module")
def node(start_node: Callable[..., Node]) -> Node:
    return start_node(
        {
            "dnns": ["lane", "object", "pedestrian", "tracked"],
            "dnn": {"tracked": {"role": "object", "model": "builtin:object", "track": True}},
            "camera": {"front": {"pose": [1.0, 0.0, 1.5, 0.0, 0.02, 0.0]}},
        }
    )


@pytest.fixture(scope="module")
def drive(client: Client, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """Frames with the truth, and what the node published for each."""
    options = ("--camera", "scenes", "--count", str(FRAMES), "--truth", "--wait", "1")
    with started(tmp_path_factory.mktemp("camera") / "log", "camera", "scenes", *options) as camera:
        topics = {"image_raw": Image, "truth/detections": Detection2DArray, "truth/lane_mask": Image}
        truth = {name: client.record(f"scenes/{name}", kind).messages for name, kind in topics.items()}
        client.wait_for(lambda: all(len(each) == FRAMES for each in truth.values()), "all frames of the road")
        assert camera.wait(LIMIT_S) == 0
    node.wait_until_active()
    kinds = {
        "lane/points": PointCloud2, "lane/ground_points": PointCloud2, "lane/mask": Image, "overlay": Image,
        "overlay/compressed": CompressedImage,
        **{f"{dnn}/detections": Detection2DArray for dnn in ("object", "pedestrian", "tracked")},
    }  # fmt: skip
    results = {name: client.record(node.topic(f"front/{name}"), kind) for name, kind in kinds.items()}
    labels = client.record(node.topic("object/label_info"), LabelInfo, LATCHED)
    info = CameraInfo(width=640, height=480, distortion_model="plumb_bob", d=[0.0] * 5)
    info.k = [500.0, 0.0, 319.5, 0.0, 500.0, 239.5, 0.0, 0.0, 1.0]
    calibration = client.node.create_publisher(CameraInfo, "front/camera_info", ALL)
    front = Camera(client, "front/image_raw")
    client.wait_for(calibration.get_subscription_count, "a subscription of the CameraInfo")
    calibration.publish(info)
    images = truth["image_raw"]
    front.send_until_answered(results["lane/ground_points"], images[0])
    begin = client.new_stamp()  # one drive, whose frames follow one another after 0.1 s
    for number, image in enumerate(images):
        stamp = front.send(image, begin + number * 100_000_000)
        for name, recording in results.items():
            client.wait_for(lambda r=recording, s=stamp: r.at(s), f"{name} of frame {number}")
    client.wait_for(lambda: labels.messages, "label_info")
    found = {name: [recording.at(stamp_ns(image)) for image in images] for name, recording in results.items()}
    return {**truth, **found, "label_info": labels.messages}


def test_boxes_are_those_of_the_scene(drive: Drive) -> None:
    names = {entry.class_id: entry.class_name for entry in drive["label_info"][-1].class_map}
    right = true = reported = 0
    for number, truth in enumerate(drive["truth/detections"]):
        found = [d for dnn in ("object", "pedestrian") for d in drive[f"{dnn}/detections"][number].detections]
        true += len(truth.detections)
        reported += len(found)
        for expected in truth.detections:
            right += any(iou(box_of(expected), box_of(detection)) > 0.5 for detection in found)
        for detection in drive["object/detections"][number].detections:
            hypothesis = detection.results[0].hypothesis
            assert int(hypothesis.class_id) in names
            assert drive["label_info"][-1].threshold <= hypothesis.score <= 1
            assert detection.id == ""
    assert true > FRAMES
    assert right > 0.6 * true, f"{right} of {true} boxes"
    assert right > 0.6 * reported, f"{reported - right} of {reported} are false"


def test_lane_points_and_mask_are_on_the_lines(drive: Drive) -> None:
    distances, on_mask = [], []
    for cloud, truth, mask in zip(drive["lane/points"], drive["truth/lane_mask"], drive["lane/mask"], strict=True):
        assert [field.name for field in cloud.fields] == ["u", "v", "lane", "score"]
        points, lanes = points_of(cloud), pixels_of(mask)
        assert lanes.shape == (480, 640)
        far = cv2.distanceTransform((pixels_of(truth) == 0).astype(np.uint8), cv2.DIST_L2, 5)
        for u, v, lane, score in points:
            row, column = min(479, round(float(v))), min(639, round(float(u)))
            distances.append(far[row, column])
            on_mask.append(lane in lanes[max(0, row - 6) : row + 7, max(0, column - 6) : column + 7])
            assert 0 <= score <= 1
        assert set(points[:, 2]) == set(lanes[lanes > 0])
    assert len(distances) > 20 * FRAMES
    assert np.percentile(distances, 80) < 8
    assert np.mean(on_mask) > 0.95


def test_ground_points_are_the_lane_points_on_the_road(drive: Drive) -> None:
    """The plane z = 0 below a camera at height 1.5 m that looks down by 0.02 rad."""
    sin, cos = math.sin(0.02), math.cos(0.02)
    for cloud, ground in zip(drive["lane/points"], drive["lane/ground_points"], strict=True):
        assert [field.name for field in ground.fields] == ["x", "y", "z", "lane", "score"]
        assert ground.header.frame_id == "base_link"
        points = points_of(cloud).astype(float)
        right, down = (points[:, 0] - 319.5) / 500, (points[:, 1] - 239.5) / 500
        falls = sin + cos * down  # per metre along the optical axis
        scale = 1.5 / falls
        expected = np.stack((1 + scale * (cos - sin * down), -scale * right, 0 * scale), axis=1)
        near = (falls > 0) & (np.hypot(expected[:, 0] - 1, expected[:, 1]) <= 50)
        found = points_of(ground)
        assert len(found) > 10
        assert found[:, :3] == pytest.approx(expected[near], rel=1e-3, abs=1e-3)
        assert np.array_equal(found[:, 3:], points_of(cloud)[near, 2:])


def test_the_overlay_is_the_image_with_the_results(drive: Drive) -> None:
    overlays = zip(drive["image_raw"], drive["overlay"], drive["overlay/compressed"], strict=True)
    for image, raw, jpeg in overlays:
        before, after = pixels_of(image).astype(int), pixels_of(raw).astype(int)
        changed = np.any(before != after, axis=2)
        assert 0.001 < changed.mean() < 0.7
        decoded = cv2.imdecode(np.frombuffer(bytes(jpeg.data), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        assert np.abs(decoded - after).mean() < 8


def test_an_object_keeps_its_identity(drive: Drive) -> None:
    arrays = [message.detections for message in drive["tracked/detections"]]
    same = other = 0
    for before, after in itertools.pairwise(arrays):
        for first, second in itertools.product(before, after):
            if first.id and second.id and iou(box_of(first), box_of(second)) > 0.6:
                same += first.id == second.id
                other += first.id != second.id
    assert same > FRAMES
    assert other <= same // 10
    for detections in arrays:
        identities = [detection.id for detection in detections if detection.id]
        assert len(set(identities)) == len(identities)


def test_replay_finds_the_same_in_a_recording_of_these_images(drive: Drive, node: Node, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "drive", [(TOPIC, image) for image in drive["image_raw"]])
    succeed("replay", source, tmp_path / "results", "--params-file", node.parameter_file)
    results = read_results(tmp_path / "results")
    for name in ("lane/points", "object/detections", "pedestrian/detections"):
        assert [message for _, message in results[f"/multi_dnn/front/{name}"]] == drive[name], name
