"""The input of one camera: counts each message and passes it to the thread that decodes the images of the camera."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.ros import image_sources
from multi_dnn_ros.ros.camera_record import CameraRecord
from multi_dnn_ros.ros.camera_subscription import CameraSubscription
from multi_dnn_ros.ros.image_sources import Publisher, PublisherState
from multi_dnn_ros.ros.qos import described, subscription_qos
from multi_dnn_ros.ros.receive_check import ReceiveCheck
from multi_dnn_ros.ros.stamp_check import StampCheck
from multi_dnn_ros.serving.camera_decoder import Decode, ReadJpeg
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.vision.image_decoding import ENCODINGS, decode_compressed, decode_image, jpeg_for_device

#: A warning is logged if a topic has had no compatible publisher for this time.
WARN_AFTER_NS = 5_000_000_000
#: Raw images of a quick encoding and at most this size are converted in less time than waking another thread takes
#: (0.1 ms on two cores).
_QUICK_BYTES = 400_000


class CameraInput:
    """The subscription of one camera.

    on_frame: called with each frame (without its image), the function that decodes the image, whether a later image has
    arrived before it, whether it is decoded quickly, and the function that reads a JPEG file (None: decode it on the
    CPU), as :meth:`CameraDecoder.arrived`; must not block. clock: monotonic, nanoseconds. check: checks
    the node's receive buffers.
    """

    def __init__(
        self,
        node: LifecycleNode,
        camera: str,
        config: CameraConfig,
        on_frame: Callable[[Frame, Decode, bool, bool, ReadJpeg | None], None],
        clock: Callable[[], int],
        check: ReceiveCheck,
    ) -> None:
        self._node = node
        self._log = node.get_logger()
        self._camera = camera
        self._config = config
        self._on_frame = on_frame
        self._clock = clock
        self._check = check
        self._type = image_sources.TYPES[config.transport]
        self._topic = topic = config.topic or default_topic(camera, config.transport)
        self._publishers: list[Publisher] = image_sources.publishers_of(node, topic)
        self._gids: frozenset[bytes] = frozenset()  # identities of the publishers with the right type
        self._publisher_state, self._state_since_ns, self._warned = PublisherState.FITS, clock(), False
        compressed = config.transport == "compressed"
        self._subscription = CameraSubscription(
            node,
            CompressedImage if compressed else Image,
            topic,
            self._preferred_qos(),
            self._on_compressed if compressed else self._on_raw,
            self._on_lost,
        )
        self.record = CameraRecord(
            camera,
            self._subscription.topic_name,
            clock(),
            rate_hz=config.rate_hz,
            raw=not compressed,
            max_loss=config.max_loss,
        )
        self._stamps = StampCheck(
            camera,
            self.record.topic,
            self._log.warning,
            lambda: bool(node.count_publishers(node.resolve_topic_name("/clock"))),
        )
        self.update(0)

    def close(self) -> None:
        """Destroy the subscription."""
        self._subscription.close()

    def update(self, dropped_datagrams: int) -> None:
        """Check the publishers and count losses; to be called about twice a second.

        dropped_datagrams: at the sockets of this process, by the kernel, since the last call.
        """
        now_ns = self._clock()
        connected = self._publisher_state is PublisherState.FITS
        self.record.estimator.add_dropped_datagrams(now_ns, dropped_datagrams, connected=connected)
        self._subscription.tick(now_ns)
        self._publishers = image_sources.publishers_of(self._node, self._topic)
        gids = frozenset(publisher.gid for publisher in self._publishers if publisher.type == self._type)
        if gids and gids != self._gids:
            if self._gids:
                self.record.estimator.restart()
            self._gids = gids
            preferred = self._preferred_qos()
            if preferred.reliability != self._subscription.qos.reliability:
                self._subscription.change(preferred, now_ns)
        self._check_publishers(now_ns)
        self.record.qos = described(self._subscription.qos)

    def update_record(self) -> None:
        """Update the losses of the record, and check the stamps; to be called before each diagnostics message."""
        record = self.record
        self._stamps.update(record.age(self._clock()), simulated=self._node.get_clock().ros_time_is_active)
        reliable = self._is_reliable()
        losses = record.estimator.losses(self._clock(), record.image_bytes, reliable)
        record.losses = losses
        record.loss_cause = ""
        transport = self._config.transport
        if losses.share > record.max_loss:
            # Otherwise nothing indicates that the receive buffers are too small.
            if losses.dropped_datagrams or not reliable:
                self._check.check_after_losses(self._camera, record.shape, record.image_bytes, transport)
            record.loss_cause = self._check.explain_losses(
                losses, record.image_bytes, reliable, self._camera, transport
            )

    def _is_reliable(self) -> bool:
        return bool(self._subscription.qos.reliability == ReliabilityPolicy.RELIABLE)

    def _preferred_qos(self) -> QoSProfile:
        offers = [publisher.qos for publisher in self._publishers if publisher.type == self._type]
        return subscription_qos(self._config.qos, self._config.depth, offers, self._check.middleware.name)

    # -- publishers

    def _check_publishers(self, now_ns: int) -> None:
        """Log once when the topic has had no compatible publisher for some time, and once when it has one again."""
        state = image_sources.classify_publishers(self._publishers, self._type, self._subscription.qos)
        if state is not self._publisher_state:
            if self._warned and state is PublisherState.FITS:
                self._log.info(f"camera {self._camera}: topic {self.record.topic} has a publisher now")
            self._publisher_state, self._state_since_ns, self._warned = state, now_ns, False
        self.record.error = self._explanation(now_ns) if state is PublisherState.OTHER_QOS else ""
        if state is not PublisherState.FITS and not self._warned and now_ns - self._state_since_ns >= WARN_AFTER_NS:
            self._warned = True
            self._log.warning(self._explanation(now_ns))

    def _explanation(self, now_ns: int) -> str:
        topic, transport = self.record.topic, self._config.transport
        if self._publisher_state is PublisherState.NONE:
            topics = image_sources.published_topics(self._node, image_sources.TYPES.values())
            seconds = (now_ns - self._state_since_ns) // 1_000_000_000
            return image_sources.explain_no_publisher(self._camera, topic, transport, seconds, topics)
        return image_sources.explain_mismatch(
            self._publisher_state, self._camera, topic, transport, self._publishers, self._subscription.qos
        )

    # -- images

    def _on_raw(self, message: Image, sequence: int | None, late: bool) -> None:
        self._count(message, sequence, late, f"{message.width} x {message.height} {message.encoding[:40]}")
        self._pass_on(message, decode_image, late, quick=is_quick(message), read_jpeg=None)

    def _on_compressed(self, message: CompressedImage, sequence: int | None, late: bool) -> None:
        self._count(message, sequence, late, f"{len(message.data)} bytes {message.format[:40]}")
        read_jpeg = None
        if self._config.jpeg_decoder != "cpu":
            read_jpeg = partial(jpeg_for_device, message, self._config.max_pixels)
        self._pass_on(message, decode_compressed, late, quick=False, read_jpeg=read_jpeg)

    def _count(self, message: Image | CompressedImage, sequence: int | None, late: bool, shape: str) -> None:
        record, size, stamp_ns = self.record, len(message.data), _stamp_ns(message)
        # Sequence numbers and stamps of different publishers cannot be compared.
        number = sequence if len(self._gids) == 1 else None
        single_publisher = len(self._gids) < 2
        clock_ns = self._node.get_clock().now().nanoseconds
        self._stamps.add(stamp_ns)
        record.arrived(
            self._clock(), shape, size, stamp_ns, number, clock_ns, single_publisher=single_publisher, late=late
        )
        if record.received == 1:
            self._check.check_first_image(self._camera, shape, size, self._is_reliable(), self._config.transport)

    def _on_lost(self, count: int) -> None:
        self.record.estimator.add_reported_losses(self._clock(), count)

    def _pass_on(
        self,
        message: Image | CompressedImage,
        decode: Callable,
        late: bool,
        quick: bool,
        read_jpeg: ReadJpeg | None,
    ) -> None:
        frame = Frame(self._camera, _stamp_ns(message), context=message.header)
        self._on_frame(frame, partial(decode, message, self._config.max_pixels), late, quick, read_jpeg)


def is_quick(message: Image) -> bool:
    """Whether converting the image takes less time than waking another thread."""
    encoding = ENCODINGS.get(message.encoding)
    return encoding is not None and encoding.quick and len(message.data) <= _QUICK_BYTES


def default_topic(camera: str, transport: str) -> str:
    """The conventional topic of a camera; relative, so that namespace and remaps apply."""
    return f"{camera}/image_raw" + ("/compressed" if transport == "compressed" else "")


def image_topic(node: Node, camera: str, config: CameraConfig) -> str:
    """The absolute name of the topic of a camera's images, after remapping."""
    return str(node.resolve_topic_name(config.topic or default_topic(camera, config.transport)))


def _stamp_ns(message: Image | CompressedImage) -> int:
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
