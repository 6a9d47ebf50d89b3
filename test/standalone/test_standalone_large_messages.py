"""Raw images between processes, with the socket buffers of an ordinary kernel and with a raised limit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STOCK_BYTES = 212_992
IMAGES = 30

#: Sends 1280x720 bgr8 images at 30 Hz to a reliable subscription; image n is filled with n.
_CAMERA = f"""
import array, time
import rclpy
from rclpy.duration import Duration
from sensor_msgs.msg import Image
rclpy.init(args=[])
node = rclpy.create_node("camera")
publisher = node.create_publisher(Image, "image", {IMAGES})
while publisher.get_subscription_count() < 1:
    time.sleep(0.02)
time.sleep(0.5)
begin = time.monotonic()
for number in range({IMAGES}):
    time.sleep(max(0.0, begin + number / 30 - time.monotonic()))
    data = array.array("B", bytes([number]) * (1280 * 720 * 3))
    publisher.publish(Image(height=720, width=1280, step=3840, encoding="bgr8", data=data))
assert publisher.wait_for_all_acked(Duration(seconds=60)), "not every image was acknowledged"
node.destroy_node()
rclpy.shutdown()
"""


def _granted_bytes(domain: int) -> set[int]:
    from multi_dnn_ros.standalone.loopback import domain_sockets

    sizes = set()
    for receiver in domain_sockets(domain):
        with receiver:
            sizes.add(receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    return sizes


def _receive_all(domain: int, start_process: Callable[..., Any], granted_bytes: int) -> None:
    import rclpy
    from sensor_msgs.msg import Image

    rclpy.init(args=[])
    try:
        node = rclpy.create_node("viewer")
        got: list[tuple[int, int]] = []
        node.create_subscription(
            Image, "image", lambda image: got.append((len(image.data), len(set(bytes(image.data))))), IMAGES
        )
        assert _granted_bytes(domain) == {granted_bytes}
        camera = start_process(_CAMERA)
        while camera.poll() is None or len(got) < IMAGES:
            assert camera.poll() in (None, 0), camera.communicate()
            rclpy.spin_once(node, timeout_sec=0.05)
    finally:
        rclpy.try_shutdown()
    assert got == [(1280 * 720 * 3, 1)] * IMAGES


@pytest.mark.timeout(120)
def test_every_raw_image_arrives_through_the_buffers_of_an_ordinary_kernel(
    domain: int, start_process: Callable[..., Any]
) -> None:
    assert os.environ["MULTI_DNN_ROS_RECEIVE_BUFFER"] == str(STOCK_BYTES), "tests run with the stock size by default"
    _receive_all(domain, start_process, 2 * STOCK_BYTES)


@pytest.mark.timeout(120)
def test_every_raw_image_arrives_through_larger_buffers(
    domain: int, start_process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    if limit <= STOCK_BYTES:
        pytest.skip(f"net.core.rmem_max is {limit}: the kernel grants no larger buffer")
    monkeypatch.delenv("MULTI_DNN_ROS_RECEIVE_BUFFER")
    _receive_all(domain, start_process, 2 * min(limit, 10_000_000))


def _first_lines(domain: int, buffer: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import multi_dnn_ros.ros, rclpy; rclpy.init(args=[]); rclpy.shutdown()"],
        env={**os.environ, "ROS_DOMAIN_ID": str(domain), "MULTI_DNN_ROS_RECEIVE_BUFFER": buffer},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_log_says_how_large_messages_are_sent(domain: int) -> None:
    text = "messages larger than 283989 bytes are sent over UDP in several bursts; best-effort subscriptions may lose"
    assert text in _first_lines(domain, str(STOCK_BYTES)).stderr


@pytest.mark.parametrize("size", ["many", "-5", "1024", "4294967296", "²"])
def test_an_invalid_buffer_size_is_refused_and_named(domain: int, size: str) -> None:
    done = _first_lines(domain, size)
    assert done.returncode != 0
    assert f"MULTI_DNN_ROS_RECEIVE_BUFFER must be a number of bytes from 65536, not {size!r}" in done.stderr


def test_the_images_of_a_camera_are_not_copied(ros: Any, spin_until: Callable[..., None]) -> None:
    from rclpy.qos import QoSProfile
    from sensor_msgs.msg import CompressedImage, Image

    from multi_dnn_ros.ros.camera_subscription import CameraSubscription
    from multi_dnn_ros.vision.image_decoding import decode_image

    node = ros.create_node("one")
    got: list[Any] = []
    qos = QoSProfile(depth=10)
    for kind, topic in ((Image, "raw"), (CompressedImage, "jpeg")):
        CameraSubscription(
            node, kind, topic, qos, lambda message, sequence, late: got.append(message), lambda count: None
        )
        publisher = node.create_publisher(kind, topic, qos)
        spin_until(node, lambda publisher=publisher: publisher.get_subscription_count() == 1)
        details = {"width": 2, "height": 1, "step": 6, "encoding": "bgr8"} if kind is Image else {"format": "jpeg"}
        publisher.publish(kind(data=bytes(range(6)), **details))
    spin_until(node, lambda: len(got) == 2)
    assert [type(message.data) for message in got] == [memoryview, memoryview]
    raw = next(message for message in got if isinstance(message, Image))
    assert decode_image(raw, 2).tolist() == [[[2, 1, 0], [5, 4, 3]]]
