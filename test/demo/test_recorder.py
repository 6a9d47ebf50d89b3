"""The recorder of the demo: images are compressed when the drive is over, or when they need too much memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import Header
from waiting import until

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.demo.children import reserved_domain
from multi_dnn_ros.demo.recorder import Recorder
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter

IMAGES, BYTES = 6, 48 * 64 * 3


@pytest.mark.parametrize(("kept_bytes", "kept"), [(0, 0), (2 * (BYTES + 200), 2), (1 << 20, IMAGES)])
def test_images_are_compressed_at_the_end_or_when_they_need_too_much_memory(
    kept_bytes: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserved_domain() as domain, BagWriter(tmp_path / "bag") as writer:
        written: list[str] = []
        write = writer.write
        monkeypatch.setattr(writer, "write", lambda topic, *rest: written.append(topic) or write(topic, *rest))
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        try:
            node = rclpy.create_node("recorder", context=context)
            executor = SingleThreadedExecutor(context=context)
            executor.add_node(node)
            topics = {"/image": "sensor_msgs/msg/Image"}
            recorder = Recorder(node, writer, topics, image="/image", kept_bytes=kept_bytes)
            publisher = node.create_publisher(_type(), "/image", 10)
            until(lambda: publisher.get_subscription_count())
            for number in range(IMAGES):
                pixels = np.full((48, 64, 3), 20 * number, np.uint8)
                publisher.publish(image_message(pixels, Header()))
                until(lambda number=number: executor.spin_once(0.05) or recorder.counts["/image"] > number)
            assert len(written) == IMAGES - kept
            recorder.flush()
        finally:
            executor.shutdown()
            rclpy.shutdown(context=context)
    with BagReader(tmp_path / "bag") as bag:
        assert list(bag.topics) == ["/image/compressed"]
        messages = list(bag.messages(["/image/compressed"]))
    assert len(messages) == IMAGES
    stamps = [message.stamp_ns for message in messages]
    assert stamps == sorted(stamps)


def _type() -> Any:
    from sensor_msgs.msg import Image

    return Image
