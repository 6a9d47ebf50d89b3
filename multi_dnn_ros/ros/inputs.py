"""Camera topics in: each message becomes a frame that is decoded only when the first DNN gets to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import CompressedImage, Image

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.frame_error import FrameError
from multi_dnn_ros.ros.diagnostics import CameraRecord
from multi_dnn_ros.ros.image_decoding import decode_compressed, decode_image
from multi_dnn_ros.ros.qos import subscription_qos
from multi_dnn_ros.schema import CameraConfig


class CameraInput:
    """The subscription of one camera.

    offer: takes each frame; must not block. on_bad: told once of each image that cannot be decoded, with the camera and
    why, in the thread that decodes. clock: the engine's, nanoseconds.
    """

    def __init__(
        self,
        node: LifecycleNode,
        camera: str,
        config: CameraConfig,
        offer: Callable[[Frame], None],
        on_bad: Callable[[str, FrameError], None],
        clock: Callable[[], int],
    ) -> None:
        self._node = node
        self._camera = camera
        self._max_pixels = config.max_pixels
        self._offer = offer
        self._on_bad = on_bad
        self._clock = clock
        compressed = config.transport == "compressed"
        self._subscription = node.create_subscription(
            CompressedImage if compressed else Image,
            config.topic or default_topic(camera, config.transport),
            self._on_compressed if compressed else self._on_raw,
            subscription_qos(config.qos, config.depth),
        )
        self.record = CameraRecord(camera, self._subscription.topic_name, clock())

    def close(self) -> None:
        """Take no more messages."""
        self._node.destroy_subscription(self._subscription)

    def _on_raw(self, message: Image) -> None:
        self.record.arrived(self._clock(), f"{message.width} x {message.height} {message.encoding[:40]}")
        self._hand_over(message, decode_image)

    def _on_compressed(self, message: CompressedImage) -> None:
        self.record.arrived(self._clock(), f"{len(message.data)} bytes {message.format[:40]}")
        self._hand_over(message, decode_compressed)

    def _hand_over(self, message: Image | CompressedImage, decode: Callable) -> None:
        stamp = message.header.stamp
        load = partial(decode, message, self._max_pixels)
        on_bad = partial(self._on_bad, self._camera)
        self._offer(Frame(self._camera, stamp.sec * 1_000_000_000 + stamp.nanosec, load, message.header, on_bad))


def default_topic(camera: str, transport: str) -> str:
    """Where a camera publishes by convention; relative, so that namespace and remaps apply."""
    return f"{camera}/image_raw" + ("/compressed" if transport == "compressed" else "")
