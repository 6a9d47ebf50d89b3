"""Bad frames on the topics of a node process: counted by reason, and the next good frame is processed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import psutil
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from node_bench import stranger_in
from onnx import TensorProto, helper
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header, String
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.demo.children import Child, loopback_environment, reserved_domain
from multi_dnn_ros.demo.recorded_frames import last_statuses

WAIT_S = 60.0
WIDTH, HEIGHT = 64, 48
PICTURE = np.random.default_rng(0).integers(1, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
JPEG, PNG = (cv2.imencode(end, PICTURE)[1].tobytes() for end in (".jpg", ".png"))
BOMB = cv2.imencode(".png", np.zeros((9_000, 9_000), np.uint8))[1].tobytes()
PARAMETERS = """\
/**:
  ros__parameters:
    device: cpu
    diagnostics_period_s: 0.1
    cameras: [front, side]
    camera:
      front: {qos: reliable, depth: 10}
      side: {transport: compressed, qos: reliable, depth: 10}
    dnns: [object, dizzy]
    dnn:
      object: {model: "builtin:object_small", backend: eager, jobs: 1}
      dizzy: {role: object, model: MODEL, decoder: yolo, labels: [thing], backend: eager, jobs: 1, cameras: [front]}
"""


def dizzy_model(path: Path) -> None:
    """A detector (1, 3, 8, 8) -> (1, 5, 64): log(d * d) * d of darkness d; NaN for a white image.

    The product goes through max pooling, which keeps NaN in PyTorch and loses it in ONNX Runtime.
    """
    weight = helper.make_tensor("w", TensorProto.FLOAT, [5, 3, 1, 1], np.full(15, 0.01))
    white = helper.make_tensor("white", TensorProto.FLOAT, [1], [1.0])
    shape = helper.make_tensor("s", TensorProto.INT64, [3], [1, 5, 64])
    nodes = [
        helper.make_node("Sub", ["white", "image"], ["darkness"]),
        helper.make_node("Mul", ["darkness", "darkness"], ["square"]),
        helper.make_node("Log", ["square"], ["logarithm"]),
        helper.make_node("Mul", ["logarithm", "darkness"], ["product"]),
        helper.make_node("MaxPool", ["product"], ["pooled"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["pooled", "w"], ["rows"]),
        helper.make_node("Reshape", ["rows", "s"], ["out"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 5, 64])
    graph = helper.make_graph(nodes, "dizzy", [image], [out], [weight, white, shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


class Rig:
    """Two cameras and a listener around a node process."""

    def __init__(self, folder: Path, domain: int) -> None:
        dizzy_model(folder / "dizzy.onnx")
        (folder / "robot.yaml").write_text(PARAMETERS.replace("MODEL", str(folder / "dizzy.onnx")))
        self.domain = domain
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.peer = rclpy.create_node("peer", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.peer)
        self.statuses: dict[str, dict[str, Any]] = {}
        self.heard: dict[str, list[Any]] = {"front": [], "side": []}
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self._diagnosed, QoSProfile(depth=100))
        for camera, heard in self.heard.items():
            topic = f"/multi_dnn/{camera}/object/detections"
            self.peer.create_subscription(Detection2DArray, topic, heard.append, QoSProfile(depth=100))
        profile = QoSProfile(depth=100)
        self.cameras = {
            "front": self.peer.create_publisher(Image, "/front/image_raw", profile),
            "side": self.peer.create_publisher(CompressedImage, "/side/image_raw/compressed", profile),
        }
        self.node = Child(
            "node",
            ["run", "--params-file", str(folder / "robot.yaml")],
            folder / "node.log",
            loopback_environment(domain),
        )
        self.until(lambda: self.statuses.get("node", {}).get("values", {}).get("state") == "active", "the active node")
        self.until(lambda: all(camera.get_subscription_count() for camera in self.cameras.values()), "its cameras")

    def _diagnosed(self, message: Any) -> None:
        self.statuses.update(last_statuses([message], "/multi_dnn"))

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            failed = self.statuses.get("node", {}).get("level") == 2 or self.node.exit_code() is not None
            assert not failed, self.node.last_lines(30)
            assert time.monotonic() < deadline, f"waited for {what}: {self.statuses}\n{self.node.last_lines(30)}"
            self.executor.spin_once(timeout_sec=0.02)

    def count(self, stream: str, key: str) -> int:
        return int(self.statuses.get(stream, {}).get("values", {}).get(key, 0))

    def count_at_rest(self, stream: str, key: str) -> int:
        """The count while no frame is on its way, which the last report may not have had yet."""
        for _ in range(2):  # the first may have been on its way
            self.statuses.clear()
            self.until(lambda: stream in self.statuses, "a new report")
        return self.count(stream, key)

    def served_after(self, camera: str, good: Any) -> None:
        before = len(self.heard[camera])
        self.cameras[camera].publish(good)
        self.until(lambda: len(self.heard[camera]) == before + 1, f"the whole frame of {camera}")
        assert self.heard[camera][-1].header.stamp.sec == good.header.stamp.sec

    def close(self) -> None:
        self.node.stop()
        self.executor.shutdown()
        self.peer.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, forked_children: None) -> Iterator[Rig]:
    with reserved_domain() as domain:
        rig = Rig(tmp_path_factory.mktemp("rig"), domain)
        yield rig
        rig.close()


def image(stamp: int, pixels: np.ndarray = PICTURE) -> Image:
    message = Image(header=_header(stamp), width=WIDTH, height=HEIGHT, encoding="rgb8", step=WIDTH * 3)
    message.data = pixels.tobytes()
    return message


def compressed(stamp: int, data: bytes, kind: str = "jpeg") -> CompressedImage:
    return CompressedImage(header=_header(stamp), format=kind, data=data)


def _header(stamp: int) -> Header:
    header = Header(frame_id="cam")
    header.stamp.sec = stamp
    return header


def changed(**fields: Any) -> Image:
    message = image(1)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


BAD_IMAGES = {
    "unknown encoding": changed(encoding="infrared"),
    "an encoding of 10 kB": changed(encoding="x" * 10_000),
    "no width": changed(width=0),
    "no height": changed(height=0),
    "4 billion columns": changed(width=2**32 - 1, step=2**32 - 1),
    "1.8e19 pixels": changed(width=2**32 - 1, height=2**32 - 1, step=2**32 - 1),
    "step too small": changed(step=1),
    "step too large": changed(step=2**32 - 1),
    "data too short": changed(data=PICTURE.tobytes()[:-1]),
    "data too long": changed(data=PICTURE.tobytes() + b"x"),
    "no data": changed(data=b""),
    "odd yuv": changed(encoding="nv12", height=47),
}
BAD_FILES = {
    "half a JPEG": JPEG[: len(JPEG) // 2],
    "half a PNG": PNG[: len(PNG) // 2],
    "a wrong checksum": PNG[:60] + b"\xff" + PNG[61:],
    "an 81 MP bomb": BOMB,
    "nothing": b"",
    "text": b"no image at all",
    "a JPEG of 65535 x 65535": JPEG[: JPEG.index(b"\xff\xc0") + 5] + b"\xff" * 4 + JPEG[JPEG.index(b"\xff\xc0") + 9 :],
}


def test_bad_images(rig: Rig) -> None:
    process = psutil.Process(rig.node.pid)
    rig.served_after("front", image(1))
    before = process.memory_info().rss
    for number, (fault, bad) in enumerate(BAD_IMAGES.items(), start=1):
        rig.cameras["front"].publish(bad)
        rig.until(lambda n=number: rig.count("object on front", "dropped: bad_image") == n, fault)
        rig.served_after("front", image(10 + number))
    assert process.memory_info().rss - before < 100 << 20
    assert "encoding is 'infrared'; allowed: rgb8" in rig.node.log.read_text()


def test_bad_files(rig: Rig) -> None:
    process = psutil.Process(rig.node.pid)
    rig.served_after("side", compressed(1, JPEG))
    before = process.memory_info().rss
    for number, (fault, data) in enumerate(BAD_FILES.items(), start=1):
        rig.cameras["side"].publish(compressed(2, data))
        rig.until(lambda n=number: rig.count("object on side", "dropped: bad_image") == n, fault)
        rig.served_after("side", compressed(10 + number, PNG, "png"))
    assert process.memory_info().rss - before < 100 << 20
    assert "truncated" in rig.node.log.read_text()


def test_images_that_use_few_of_their_bits(rig: Rig) -> None:
    """They are processed, nearly black, and the log names the parameter."""
    dark = image(300)
    dark.encoding, dark.step, dark.data = "mono16", 2 * WIDTH, PICTURE[..., 0].astype("<u2").tobytes()
    rig.served_after("front", dark)
    rig.until(lambda: "set parameter camera.front.bits" in rig.node.log.read_text(), "the warning")


def test_another_type_on_the_topic(rig: Rig) -> None:
    """DDS does not connect a publisher of another type; the camera's images are still processed."""
    received = rig.count_at_rest("camera front", "received")
    with stranger_in(rig.domain) as stranger:
        wrong = stranger.create_publisher(String, "/front/image_raw", QoSProfile(depth=100))
        for number in range(3):
            wrong.publish(String(data="hello"))
            rig.served_after("front", image(100 + number))
        assert wrong.get_subscription_count() == 0
    rig.until(lambda: rig.count("camera front", "received") == received + 3, "the count of what was received")


def test_outputs_that_are_not_finite(rig: Rig) -> None:
    """The DNN with NaN outputs loses the frame, the other one processes it, and both process the next frame."""
    rig.until(lambda: rig.count("dizzy on front", "pending") == 0, "its earlier frames")
    white = image(200, np.full_like(PICTURE, 255))
    lost, dizzy = (rig.count("dizzy on front", key) for key in ("dropped: bad_output", "published"))
    rig.served_after("front", white)
    rig.until(lambda: rig.count("dizzy on front", "dropped: bad_output") == lost + 1, "the count")
    rig.served_after("front", image(201))
    rig.until(lambda: rig.count("dizzy on front", "published") > dizzy, "the DNN that was dizzy")
    assert "dizzy" in rig.node.log.read_text()


def test_counts_are_exact_and_the_node_ends_cleanly(rig: Rig) -> None:
    for stream in ("object on front", "object on side", "dizzy on front"):
        rig.until(lambda stream=stream: rig.count(stream, "pending") == 0, f"{stream} at rest")
        values = rig.statuses[stream]["values"]
        dropped = sum(int(value) for key, value in values.items() if key.startswith("dropped: "))
        assert int(values["offered"]) == int(values["published"]) + dropped
    assert rig.statuses["node"]["level"] == 0
    assert rig.node.stop()
    assert rig.node.exit_code() == 0
    assert "Traceback" not in rig.node.log.read_text()
