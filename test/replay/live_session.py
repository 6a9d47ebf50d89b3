"""Camera and node as processes, and a listener in the test."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection2DArray, LabelInfo

from multi_dnn_ros.common.processes import Child, loopback_environment, reserved_domain
from multi_dnn_ros.demo.evaluation import frame_counts, last_statuses
from multi_dnn_ros.ros.qos import LATCHED

OUTPUTS = {
    "lane/mask": Image,
    "lane/points": PointCloud2,
    "object/detections": Detection2DArray,
    "pedestrian/detections": Detection2DArray,
}
DNNS = ("lane", "object", "pedestrian")
NODE = "/multi_dnn"
_START_S, _DRIVE_S = 120.0, 240.0


class LiveSession:
    """What the node published for one camera run.

    outputs: messages by topic below ``~/front/``, in order of arrival. labels: the newest LabelInfo of each detector.
    """

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        self.outputs: dict[str, list[Any]] = defaultdict(list)
        self.statuses: dict[str, dict[str, Any]] = {}
        self.reports = 0
        self.node_log = ""
        self.camera_log = ""
        self.node_ended_cleanly = False
        self._changed = threading.Condition()

    def accounts(self, dnn: str) -> dict[str, Any]:
        """The node's own count of the frames of a DNN."""
        return frame_counts(self.statuses[f"{dnn} on front"])

    def run(self, camera: Sequence[str], node: Sequence[str], folder: Path) -> LiveSession:
        """Run `multi-dnn camera ...` and `multi-dnn run ...` until the camera has ended and every frame is counted."""
        with (
            reserved_domain() as domain,
            _listening(self, domain),
            Child("node", ["run", *node], folder / "node.log", loopback_environment(domain)) as server,
            Child(
                "camera", ["camera", *camera, "--wait", "1"], folder / "camera.log", loopback_environment(domain)
            ) as source,
        ):
            try:
                self._wait(lambda: "object on front" in self.statuses, _START_S, server)
                self._wait(lambda: source.exit_code() is not None, _DRIVE_S, server)
                enough = self.reports + 2  # earlier reports may lack the last frames
                self._wait(lambda: self.reports >= enough and self._all_counted(), 30.0, server)
            finally:
                self.node_ended_cleanly = server.stop() and server.exit_code() == 0
                self.node_log, self.camera_log = server.log.read_text(), source.log.read_text()
            assert source.exit_code() == 0, self.camera_log
        return self

    def receive(self, topic: str, message: Any) -> None:
        with self._changed:
            if topic == "/diagnostics":
                self.statuses.update(last_statuses([message], NODE))
                self.reports += 1
            else:
                self.outputs[topic].append(message)
            self._changed.notify_all()

    def _all_counted(self) -> bool:
        """Whether nothing is pending and every published result has arrived."""
        counts = [self.accounts(dnn) for dnn in DNNS]
        arrived = [len(self.outputs[f"{dnn}/{'points' if dnn == 'lane' else 'detections'}"]) for dnn in DNNS]
        return all(
            count["pending"] == 0 and count["published"] == came for count, came in zip(counts, arrived, strict=True)
        )

    def _wait(self, condition: Any, timeout_s: float, server: Child) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                self._changed.wait(0.2)
                failed = self.statuses.get("node", {}).get("level") == 2 or server.exit_code() is not None
                if failed or time.monotonic() > deadline:
                    counts = {topic: len(messages) for topic, messages in self.outputs.items()}
                    raise AssertionError(f"{counts}; node ({server.exit_code()}):\n{server.last_lines(30)}")


@contextlib.contextmanager
def _listening(session: LiveSession, domain: int) -> Iterator[None]:
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = rclpy.create_node("listener", context=context)
    topics: Mapping[str, type] = {f"{NODE}/front/{name}": kind for name, kind in OUTPUTS.items()}
    for topic, kind in {**topics, "/diagnostics": DiagnosticArray}.items():
        name = topic.removeprefix(f"{NODE}/front/")
        node.create_subscription(
            kind, topic, lambda message, name=name: session.receive(name, message), QoSProfile(depth=50)
        )
    for dnn in ("object", "pedestrian"):
        node.create_subscription(
            LabelInfo,
            f"{NODE}/{dnn}/label_info",
            lambda message, dnn=dnn: session.labels.update({dnn: message}),
            LATCHED,
        )
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException, ShutdownException):
            executor.spin()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        executor.shutdown()
        thread.join(10.0)
        assert not thread.is_alive()
        node.destroy_node()  # a real rclpy frees the DDS participant only when its nodes are gone
        rclpy.shutdown(context=context)
