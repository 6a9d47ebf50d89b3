"""``multi-dnn camera`` through real topics: every source, its stamps, its rate."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image
from topic_listener import Listener
from vision_msgs.msg import Detection2DArray, LabelInfo

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.demo.children import loopback_environment
from multi_dnn_ros.ros.result_messages import class_names
from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image

SETTINGS = ImageSettings("front", 100_000)


@pytest.fixture(autouse=True)
def _in_test_domain(domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in loopback_environment(domain).items():
        monkeypatch.setenv(name, value)


def seconds(message: object) -> float:
    stamp = message.header.stamp  # type: ignore[attr-defined]
    return float(stamp.sec + stamp.nanosec * 1e-9)


def pictures(folder: Path, count: int = 5) -> str:
    folder.mkdir()
    for index in range(count):
        cv2.imwrite(str(folder / f"{index}.png"), np.full((48, 64, 3), (0, 0, 50 * index), np.uint8))  # red in BGR
    return str(folder)


def test_images_at_a_rate_stamped_now(tmp_path: Path, domain: int, capsys: pytest.CaptureFixture[str]) -> None:
    source = pictures(tmp_path / "pictures", 12)
    with Listener({"/front/image_raw": Image}, domain) as listener:
        assert main(["camera", source, "--rate", "20", "--wait-for-subscribers", "1"]) == 0
        listener.wait(lambda: len(listener.messages["/front/image_raw"]) == 12)
        messages = listener.messages["/front/image_raw"]
        now = listener.node.get_clock().now().nanoseconds * 1e-9
    out = capsys.readouterr().out
    # The stamps keep the rate on average, even if the machine delays single frames. A frame that is delayed by more
    # than a period is reported as late, and so are the frames behind it.
    period_s = (seconds(messages[-1]) - seconds(messages[0])) / 11
    assert period_s > 0.04
    assert period_s < 0.06 or " late" in out
    assert 0 <= now - seconds(messages[-1]) < 30
    assert {message.header.frame_id for message in messages} == {"front"}
    assert [int(decode_image(message, SETTINGS)[0, 0, 0]) for message in messages[:5]] == [0, 50, 100, 150, 200]
    assert "/front/image_raw" in out
    assert "published 12 frames" in out


def test_video_compressed_resized_and_renamed(tmp_path: Path, domain: int) -> None:
    path = tmp_path / "drive.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 50.0, (64, 48))
    for _ in range(6):
        writer.write(np.full((48, 64, 3), (200, 0, 0), np.uint8))  # blue in BGR
    writer.release()
    topic = "/robot/rear/image_raw/compressed"
    options = ["--camera", "rear", "--encoding", "jpeg", "--size", "32x20", "--loop"]
    with Listener({topic: CompressedImage}, domain) as listener:
        command = ["camera", str(path), *options, "--count", "9", "--wait", "1"]
        assert main([*command, "--ros-args", "-r", "__ns:=/robot"]) == 0
        listener.wait(lambda: len(listener.messages[topic]) == 9)
        messages = listener.messages[topic]
    assert messages[0].header.frame_id == "rear"
    assert "jpeg" in messages[0].format
    picture = decode_compressed(messages[0], SETTINGS)
    assert picture.shape == (20, 32, 3)
    np.testing.assert_allclose(picture.mean(axis=(0, 1)), (0, 0, 200), atol=8)


def test_scenes_with_their_truth(domain: int) -> None:
    """The published truth is that of the generator, with the image's stamp."""
    topics = {"/front/image_raw": Image, "/front/truth/detections": Detection2DArray, "/front/truth/lane_mask": Image}
    labels = "/front/truth/label_info"
    with Listener({**topics, labels: LabelInfo}, domain, latched=frozenset([labels])) as listener:
        command = ["camera", "scenes", "--truth", "--seed", "3", "--size", "160x120", "--rate", "10"]
        assert main([*command, "--count", "3", "--wait", "1"]) == 0
        listener.wait(lambda: all(len(listener.messages[topic]) == 3 for topic in topics))
        listener.wait(lambda: listener.messages[labels])
    named = class_names(listener.messages[labels][0])
    drive = SceneGenerator(160, 120, 3).drive(3, 10.0)
    for index in range(3):
        image, boxes, mask = (listener.messages[topic][index] for topic in topics)
        scene = drive.frame(index)
        assert image.header == boxes.header == mask.header
        np.testing.assert_array_equal(decode_image(image, SETTINGS), scene.image)
        np.testing.assert_array_equal(np.frombuffer(mask.data, np.uint8).reshape(120, 160), scene.lane_mask)
        assert mask.encoding == "mono8"
        names = [named[detection.results[0].hypothesis.class_id] for detection in boxes.detections]
        assert names == [LABELS[class_id] for class_id in scene.class_ids]
        for detection, (x1, y1, x2, y2) in zip(boxes.detections, scene.boxes, strict=True):
            centre, box = detection.bbox.center.position, detection.bbox
            assert (centre.x, centre.y) == pytest.approx(((x1 + x2) / 2, (y1 + y2) / 2), abs=1e-3)
            assert (box.size_x, box.size_y) == pytest.approx((x2 - x1, y2 - y1), abs=1e-3)
