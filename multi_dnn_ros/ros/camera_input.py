"""The input of one camera: counts each message and passes it to the thread that decodes the images of the camera."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.ros import image_sources
from multi_dnn_ros.ros.camera_record import MAX_LOSS, CameraRecord
from multi_dnn_ros.ros.image_sources import Publisher, PublisherState
from multi_dnn_ros.ros.middleware import remedy_for_size, rmem_max_bytes
from multi_dnn_ros.ros.qos import described, subscription_qos
from multi_dnn_ros.ros.stamp_check import StampCheck
from multi_dnn_ros.serving.camera_decoder import Decode, ReadJpeg
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.vision.image_decoding import (
    ImageSettings,
    decode_compressed,
    decode_image,
    jpeg_for_device,
)

#: A warning is logged if a topic has had no compatible publisher, or several publishers, for this time.
WARN_AFTER_NS = 5_000_000_000
#: Size that is assumed while no image has arrived: 1280x720 bgr8.
_EXAMPLE_BYTES = 1280 * 720 * 3


class CameraInput:
    """The subscription of one camera.

    on_frame: called with each frame (without its image), the function that decodes the image, and the function that
    reads a JPEG file (None: decode it on the CPU), as :meth:`CameraDecoder.arrived`; must not block. clock: monotonic,
    nanoseconds.
    """

    def __init__(
        self,
        node: LifecycleNode,
        camera: str,
        config: CameraConfig,
        on_frame: Callable[[Frame, Decode, ReadJpeg | None], None],
        clock: Callable[[], int],
    ) -> None:
        self._node = node
        self._log = node.get_logger()
        self._camera = camera
        self._config = config
        self._on_frame = on_frame
        self._clock = clock
        self._type = image_sources.TYPES[config.transport]
        self._topic = topic = config.topic or default_topic(camera, config.transport)
        self._publishers: list[Publisher] = image_sources.publishers_of(node, topic)
        self._publisher_state, self._state_since_ns, self._warned = PublisherState.FITS, clock(), False
        self._several_since_ns: int | None = None
        self._warned_about_size = False
        self._image_settings = ImageSettings(camera, config.max_pixels, config.bits, self._log.warning)
        self._qos = self._preferred_qos()
        self._recheck: Any = None  # timer
        self._subscription = self._subscribe()
        self.record = CameraRecord(
            camera,
            str(self._subscription.topic_name),
            clock(),
            rate_hz=config.rate_hz,
            qos=described(self._qos),
        )
        self._stamps = StampCheck(
            camera,
            self.record.topic,
            self._log.warning,
            lambda: bool(node.count_publishers(node.resolve_topic_name("/clock"))),
        )
        self.update()

    def close(self) -> None:
        """Destroy the subscription."""
        self._cancel_recheck()
        self._node.destroy_subscription(self._subscription)

    def update(self) -> None:
        """Check the publishers; to be called about twice a second."""
        self._publishers = image_sources.publishers_of(self._node, self._topic)
        self._choose_qos()
        now_ns = self._clock()
        self._check_publishers(now_ns)
        self._check_single_publisher(now_ns)

    def update_record(self) -> None:
        """Find out why images are missing, and check the stamps; to be called before each diagnostics message."""
        record, now_ns = self.record, self._clock()
        self._stamps.update(record.age(now_ns), simulated=self._node.get_clock().ros_time_is_active)
        record.cause = ""
        silent = record.last_ns is None and self._publisher_state is PublisherState.FITS
        silent = silent and record.silent_s(now_ns) * 1e9 > WARN_AFTER_NS
        if not silent and record.missing(now_ns) <= MAX_LOSS:
            return
        if self._config.transport == "compressed":
            alternative = "smaller images or a lower JPEG quality"
        else:
            alternative = f"JPEG images (camera.{self._camera}.transport: compressed)"
        record.cause = remedy_for_size(record.image_bytes or _EXAMPLE_BYTES, alternative, rmem_max_bytes())
        if record.cause and not self._warned_about_size:
            self._warned_about_size = True
            what = "no image arrives" if silent else "images are lost before they reach the node"
            self._log.warning(f"camera {self._camera}, topic {record.topic}: {what}: {record.cause}")
        if not record.cause and not silent:
            record.cause = (
                f"the camera sends fewer images than camera.{self._camera}.rate_hz, or they are lost on the way; see "
                "docs/cameras.md"
            )

    # -- the subscription

    def _subscribe(self) -> Any:
        compressed = self._config.transport == "compressed"
        kind, callback = (CompressedImage, self._on_compressed) if compressed else (Image, self._on_raw)
        callbacks, unsupported = _event_classes()
        # Without rclpy's default callbacks: incompatible QoS is logged here, with the names of the nodes.
        events = {"message_lost": self._on_lost, "incompatible_qos": self._on_incompatible_qos}
        create = partial(self._node.create_subscription, kind, self._topic, callback, self._qos)
        try:
            return create(event_callbacks=callbacks(**events, use_default_callbacks=False))
        except unsupported:
            return create(event_callbacks=callbacks(use_default_callbacks=False))

    def _choose_qos(self) -> None:
        """Subscribe again if the publishers offer another reliability than is requested.

        The old subscription is destroyed first, so that no image is delivered twice.
        """
        preferred = self._preferred_qos()
        if self._of_type() and preferred.reliability != self._qos.reliability:
            self._qos = preferred
            self._node.destroy_subscription(self._subscription)
            self._subscription = self._subscribe()
            self.record.qos = described(preferred)

    def _on_incompatible_qos(self, event: object) -> None:
        """A publisher was found whose images do not arrive: do not wait for the next check, because it sends already.

        A subscription must not be destroyed in its own callback.
        """
        if self._recheck is None:
            self._recheck = self._node.create_timer(0.001, self._check_again)

    def _check_again(self) -> None:
        self._cancel_recheck()
        self.update()

    def _cancel_recheck(self) -> None:
        if self._recheck is not None:
            self._node.destroy_timer(self._recheck)
            self._recheck = None

    def _preferred_qos(self) -> QoSProfile:
        return subscription_qos(self._config.qos, self._config.depth, [publisher.qos for publisher in self._of_type()])

    # -- publishers

    def _of_type(self) -> list[Publisher]:
        """The publishers of the camera's type."""
        return [publisher for publisher in self._publishers if publisher.type == self._type]

    def _check_publishers(self, now_ns: int) -> None:
        """Log once when the topic has had no compatible publisher for some time, and once when it has one again."""
        state = image_sources.classify_publishers(self._publishers, self._type, self._qos)
        if state is not self._publisher_state:
            if self._warned and state is PublisherState.FITS:
                self._log.info(f"camera {self._camera}: topic {self.record.topic} has a publisher now")
            self._publisher_state, self._state_since_ns, self._warned = state, now_ns, False
        lasting = now_ns - self._state_since_ns >= WARN_AFTER_NS
        self.record.error = ""
        if state is PublisherState.OTHER_QOS or (state is not PublisherState.FITS and lasting):
            self.record.error = self._explanation(now_ns)
            if lasting and not self._warned:
                self._warned = True
                self._log.warning(self.record.error)

    def _explanation(self, now_ns: int) -> str:
        topic, transport = self.record.topic, self._config.transport
        if self._publisher_state is PublisherState.NONE:
            topics = image_sources.published_topics(self._node, image_sources.TYPES.values())
            seconds = (now_ns - self._state_since_ns) // 1_000_000_000
            return image_sources.explain_no_publisher(self._camera, topic, transport, seconds, topics)
        return image_sources.explain_mismatch(
            self._publisher_state, self._camera, topic, transport, self._publishers, self._qos
        )

    def _check_single_publisher(self, now_ns: int) -> None:
        """Warn if several nodes have published on the topic for some time: their results alternate."""
        nodes = sorted(publisher.node for publisher in self._of_type())
        if len(nodes) < 2:
            self._several_since_ns, self.record.warning = None, ""
            return
        self._several_since_ns = self._several_since_ns or now_ns
        if not self.record.warning and now_ns - self._several_since_ns >= WARN_AFTER_NS:
            self.record.warning = (
                f"camera {self._camera}: {len(nodes)} publishers on {self.record.topic}: {', '.join(nodes)}; results "
                f"of their images alternate: stop one, or set camera.{self._camera}.topic (the publisher of a process "
                "that was killed disappears after up to 20 s)"
            )
            self._log.warning(self.record.warning)

    # -- images

    def _on_raw(self, message: Image) -> None:
        self._count(message, f"{message.width} x {message.height} {message.encoding[:40]}")
        self._pass_on(message, decode_image, None)

    def _on_compressed(self, message: CompressedImage) -> None:
        self._count(message, f"{len(message.data)} bytes {message.format[:40]}")
        read_jpeg = None
        if self._config.jpeg_decoder != "cpu":
            read_jpeg = partial(jpeg_for_device, message, self._image_settings)
        self._pass_on(message, decode_compressed, read_jpeg)

    def _count(self, message: Image | CompressedImage, shape: str) -> None:
        stamp_ns = _stamp_ns(message)
        self._stamps.add(stamp_ns)
        clock_ns = self._node.get_clock().now().nanoseconds
        self.record.arrived(self._clock(), shape, len(message.data), stamp_ns, clock_ns)

    def _on_lost(self, event: Any) -> None:
        self.record.reported_lost(self._clock(), event.total_count_change)

    def _pass_on(self, message: Image | CompressedImage, decode: Callable, read_jpeg: ReadJpeg | None) -> None:
        frame = Frame(self._camera, _stamp_ns(message), context=message.header)
        self._on_frame(frame, partial(decode, message, self._image_settings), read_jpeg)


def default_topic(camera: str, transport: str) -> str:
    """The conventional topic of a camera; relative, so that namespace and remaps apply."""
    return f"{camera}/image_raw" + ("/compressed" if transport == "compressed" else "")


def image_topic(node: Node, camera: str, config: CameraConfig) -> str:
    """The absolute name of the topic of a camera's images, after remapping."""
    return str(node.resolve_topic_name(config.topic or default_topic(camera, config.transport)))


def _stamp_ns(message: Image | CompressedImage) -> int:
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def _event_classes() -> tuple[Any, type[Exception]]:
    try:
        from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
    except ImportError:  # Humble
        from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError
    return SubscriptionEventCallbacks, UnsupportedEventTypeError
