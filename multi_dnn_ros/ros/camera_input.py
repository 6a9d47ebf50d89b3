"""The input of one camera: its publishers and subscription, its figures, and its status in /diagnostics."""

from __future__ import annotations

import difflib
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSCompatibility, QoSProfile, ReliabilityPolicy, qos_check_compatible
from sensor_msgs.msg import CompressedImage, Image

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.ros.diagnostics import ERROR, OK, STALE, WARN, WINDOW_NS, StampAges, Status, percentile_values
from multi_dnn_ros.ros.middleware import remedy_for_size, rmem_max_bytes
from multi_dnn_ros.serving.camera_decoder import Decode
from multi_dnn_ros.settings.schema import BEST_EFFORT_DEPTH, RELIABLE_DEPTH, STALE_AFTER_S, CameraConfig
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image

try:
    from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError

#: Transport -> type of the topic (parameter ``camera.<camera>.transport``).
TYPES = {"raw": "sensor_msgs/msg/Image", "compressed": "sensor_msgs/msg/CompressedImage"}
#: Ends of the names of images that nodes of this package publish; number of topics that a message lists.
_RESULTS, _MAX_TOPICS = ("/overlay", "/overlay/compressed", "/mask"), 8
#: What is wrong with the publishers of a topic is reported when it has lasted for this time.
_WARN_AFTER_NS = 5_000_000_000
#: Rate of arrival, as a share of rate_hz, below which there is a warning, and the number of images that are judged.
_MIN_RATE, _MIN_IMAGES = 0.8, 5
#: Size that is assumed while no image has arrived: 1280x720 bgr8.
_EXAMPLE_BYTES = 1280 * 720 * 3


class CameraInput:
    """The subscription of one camera. on_frame: called with each frame (without its image) and the function that
    decodes it, as :meth:`CameraDecoder.arrived`.
    """

    def __init__(
        self,
        node: LifecycleNode,
        camera: str,
        config: CameraConfig,
        on_frame: Callable[[Frame, Decode], None],
    ) -> None:
        self._node, self._log = node, node.get_logger()
        self._camera, self._config = camera, config
        self._on_frame = on_frame
        self._type = TYPES[config.transport]
        self._name = topic_name(camera, config)
        self.topic = str(node.resolve_topic_name(self._name))  # absolute, remapped
        self._image_settings = ImageSettings(camera, config.max_pixels, config.bits, self._log.warning)
        self._received = self._lost = self._image_bytes = 0
        self._last_ns = self._fits_ns = self._single_ns = time.monotonic_ns()
        self._shape = "none yet"
        self._arrivals: deque[int] = deque(maxlen=4096)
        self._ages = StampAges()
        self._error = self._warning = ""  # why no image can arrive, and what else is wrong
        self._warned: set[str] = set()  # kinds of problems that have been logged and still exist
        self._publishers = node.get_publishers_info_by_topic(self._name)
        self._closing = threading.Lock()  # held by callbacks, which run in another thread than close()
        self._closed = False
        self._subscription = self._subscribe(self._preferred_qos())

    def close(self) -> None:
        """Destroy the subscription; afterwards there are no calls of on_frame."""
        with self._closing:
            self._closed = True
            self._node.destroy_subscription(self._subscription)

    # -- publishers

    def check_publishers(self) -> None:
        """To be called about twice a second. Subscribes again if the publishers offer another reliability."""
        self._judge_publishers()
        with self._closing:
            preferred = self._preferred_qos()
            if preferred.reliability != self._qos.reliability and self._of_type() and not self._closed:
                self._node.destroy_subscription(self._subscription)  # first, so that no image is delivered twice
                self._subscription = self._subscribe(preferred)

    def _judge_publishers(self, event: object = None) -> None:
        """Find out what is wrong; also called when a publisher with incompatible QoS was found."""
        self._publishers = self._node.get_publishers_info_by_topic(self._name)
        now_ns, problem = time.monotonic_ns(), self._why_no_image()
        self._fits_ns = self._fits_ns if problem else now_ns
        lasting = now_ns - self._fits_ns >= _WARN_AFTER_NS
        self._error = problem if lasting or "QoS" in problem else ""
        self._warn_once("publishers", self._error if lasting else "")
        nodes = sorted(_node_name(publisher) for publisher in self._of_type())
        self._single_ns = self._single_ns if len(nodes) > 1 else now_ns
        self._warning = ""
        if now_ns - self._single_ns >= _WARN_AFTER_NS:
            self._warning = (
                f"{len(nodes)} publishers on {self.topic}: {', '.join(nodes)}: stop one, or set "
                f"camera.{self._camera}.topic (that of a killed process disappears after up to 20 s)"
            )
        self._warn_once("several publishers", self._warning)

    def _warn_once(self, kind: str, problem: str) -> None:
        """Log a problem that is new; empty: there is none of this kind."""
        if problem and kind not in self._warned:
            self._log.warning(f"camera {self._camera}, topic {self.topic}: {problem}")
        (self._warned.add if problem else self._warned.discard)(kind)

    def _of_type(self) -> list[Any]:
        return [publisher for publisher in self._publishers if publisher.topic_type == self._type]

    def _preferred_qos(self) -> QoSProfile:
        """The profile for the parameters. qos auto: as rclpy's best-available profile, which Humble does not have."""
        reliability: ReliabilityPolicy = ReliabilityPolicy.RELIABLE
        is_offered = all(it.qos_profile.reliability == reliability for it in self._of_type())
        if self._config.qos == "system_default":
            reliability = ReliabilityPolicy.SYSTEM_DEFAULT
        elif self._config.qos == "sensor_data" or (self._config.qos == "auto" and not is_offered):
            reliability = ReliabilityPolicy.BEST_EFFORT
        default_depth = BEST_EFFORT_DEPTH if reliability == ReliabilityPolicy.BEST_EFFORT else RELIABLE_DEPTH
        return QoSProfile(depth=self._config.depth or default_depth, reliability=reliability)

    def _why_no_image(self) -> str:
        """Why no image can arrive, and what to do; empty if a publisher has the right type and a compatible QoS."""
        parameter, of_type = f"camera.{self._camera}", self._of_type()
        if not self._publishers:
            return f"no publisher on {self.topic} ({parameter}.topic, or a remap){self._alternatives()}"
        if not of_type:
            found = sorted({f"{_node_name(it)} publishes {it.topic_type}" for it in self._publishers})
            types = {publisher.topic_type for publisher in self._publishers}
            remedy = "".join(f"set {parameter}.transport to {name}: " for name, it in TYPES.items() if types == {it})
            return f"{remedy}topic {self.topic} has no publisher of {self._type}: {', '.join(found)}"
        requested = self._preferred_qos()
        checks = {_node_name(it): qos_check_compatible(it.qos_profile, requested) for it in of_type}
        if any(compatibility != QoSCompatibility.ERROR for compatibility, _ in checks.values()):
            return ""
        listed = "; ".join(f"{name}: {reason.strip(' ;')}" for name, (_, reason) in sorted(checks.items()))
        return f"incompatible QoS: set {parameter}.qos to auto: {listed}"

    def _alternatives(self) -> str:
        """The topics that other nodes publish as this type, most similar name first."""
        own, subscribed = self._node.get_fully_qualified_name(), {it.topic_name for it in self._node.subscriptions}
        found = [
            name
            for name, types in self._node.get_topic_names_and_types()
            if self._type in types and name not in subscribed
            if not name.startswith(f"{own}/") and not name.endswith(_RESULTS) and self._node.count_publishers(name)
        ]
        found.sort(key=lambda name: (-difflib.SequenceMatcher(None, self.topic, name).ratio(), name))
        return f"; topics of type {self._type}: {', '.join(found[:_MAX_TOPICS]) or 'none'}"

    # -- images

    def _subscribe(self, qos: QoSProfile) -> Any:
        self._qos = qos
        kind = CompressedImage if self._config.transport == "compressed" else Image
        create = partial(self._node.create_subscription, kind, self._name, self._on_image, qos)
        # Without rclpy's default callbacks: incompatible QoS is logged here, with the names of the nodes.
        events = {"message_lost": self._on_lost, "incompatible_qos": self._judge_publishers}
        try:
            return create(event_callbacks=SubscriptionEventCallbacks(**events, use_default_callbacks=False))
        except UnsupportedEventTypeError:
            return create(event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False))

    def _on_image(self, message: Image | CompressedImage) -> None:
        decode: Callable = decode_image
        if isinstance(message, CompressedImage):
            self._shape = f"{len(message.data)} bytes {message.format[:40]}"
            decode = decode_compressed
        else:
            self._shape = f"{message.width} x {message.height} {message.encoding[:40]}"
        stamp = message.header.stamp
        stamp_ns = int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
        self._received += 1
        self._image_bytes = len(message.data)
        self._last_ns = time.monotonic_ns()
        self._arrivals.append(self._last_ns)
        self._ages.add(self._last_ns, self._node.get_clock().now().nanoseconds, stamp_ns)
        frame = Frame(self._camera, stamp_ns, context=message.header)
        with self._closing:
            if not self._closed:
                self._on_frame(frame, partial(decode, message, self._image_settings))

    def _on_lost(self, event: Any) -> None:
        self._lost += event.total_count_change

    # -- the status

    def silence(self, now_ns: int) -> str:
        """For how long no image has arrived; empty if it is less than STALE_AFTER_S."""
        silent_s = (now_ns - self._last_ns) / 1e9
        return f"no image on {self.topic} for {silent_s:.1f} s" if silent_s > STALE_AFTER_S else ""

    def status(self, bad_images: int, now_ns: int) -> Status:
        """The status `camera <camera>`; also logs new problems. bad_images: that could not be decoded."""
        self._warn_once("stamps", self._ages.problem(now_ns, simulated=self._node.get_clock().ros_time_is_active))
        silence, hz, expected_hz = self.silence(now_ns), self._arrival_hz(now_ns), self._config.rate_hz
        is_slow = hz < _MIN_RATE * expected_hz and self._received >= _MIN_IMAGES
        slow = f"{hz:.1f} Hz, camera.{self._camera}.rate_hz is {expected_hz:g}; see docs/cameras.md" if is_slow else ""
        cause = self._too_large() if slow or self._lost or not self._received else ""
        self._warn_once("size", cause)
        problems = "; ".join(text for text in (silence, self._warning, slow, cause) if text)
        level, text = (WARN, problems) if problems else (OK, f"{hz:.1f} Hz")
        if self._error:
            level, text = ERROR, self._error
        elif silence:
            level = STALE
        values: dict[str, object] = {
            "topic": self.topic,
            "received": self._received,
            "bad images": bad_images,
            "rate (Hz)": f"{hz:.2f}",
            "rate_hz": f"{expected_hz:.2f}" if expected_hz else "unknown",
            "silent (s)": f"{(now_ns - self._last_ns) / 1e9:.3f}",
            "image": self._shape,
            "QoS": f"{self._qos.reliability.name.lower().replace('_', ' ')}, depth {self._qos.depth}",
            **percentile_values("header stamp to arrival", self._ages.percentiles(now_ns)),
            "lost (reported by the middleware)": self._lost,
        }
        return Status(f"camera {self._camera}", level, text, values)

    def _arrival_hz(self, now_ns: int) -> float:
        """Rate of the images of the last 10 s; 0 for fewer than two."""
        recent = [at for at in self._arrivals.copy() if now_ns - at <= WINDOW_NS]
        return (len(recent) - 1) * 1e9 / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else 0.0

    def _too_large(self) -> str:
        """What to do if the images do not fit the receive buffers of the kernel; empty if they do."""
        raw = f"JPEG images (camera.{self._camera}.transport: compressed)"
        alternative = raw if self._config.transport == "raw" else "smaller images or a lower JPEG quality"
        return remedy_for_size(self._image_bytes or _EXAMPLE_BYTES, alternative, rmem_max_bytes())


def topic_name(camera: str, config: CameraConfig) -> str:
    """The topic of a camera's images before remapping; by default relative, so that the namespace applies."""
    return config.topic or f"{camera}/image_raw{'/compressed' if config.transport == 'compressed' else ''}"


def _node_name(info: Any) -> str:
    """The full name of the node of a publisher."""
    return f"{info.node_namespace.rstrip('/')}/{info.node_name}"
