"""A subscription whose QoS can change while images arrive, without duplicates and without uncounted losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

#: How long the old subscription is kept, to deliver its queue, and images until publishers discover the new one.
_OVERLAP_NS = 2_000_000_000
#: Images of the overlap that are remembered to detect duplicates.
_MAX_SEEN = 1024


class CameraSubscription:
    """A subscription to one topic.

    deliver: called with each message, its sequence number (None if the middleware does not provide it), and whether a
    message sent after it has been delivered already. on_lost: called with the number of messages that the middleware
    reports as lost.
    """

    def __init__(
        self,
        node: LifecycleNode,
        kind: type,
        topic: str,
        qos: QoSProfile,
        deliver: Callable[[Any, int | None, bool], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._node = node
        self._kind = kind
        self._topic = topic
        self._deliver = deliver
        self._on_lost = on_lost
        self._old: tuple[Any, int] | None = None  # the old subscription, and when to destroy it
        self._seen: dict[tuple[int, int, int], None] = {}
        self._newest: tuple[int, int, int] | None = None  # the newest key in self._seen
        self.qos = qos
        self._current = self._subscribe(qos)

    @property
    def topic_name(self) -> str:
        """The absolute name after remapping."""
        return str(self._current.topic_name)

    def change(self, qos: QoSProfile, now_ns: int) -> None:
        """Subscribe with another QoS. The old subscription is kept for two seconds (see :meth:`tick`)."""
        if self._old is not None:
            self._node.destroy_subscription(self._old[0])
        self._old = (self._current, now_ns + _OVERLAP_NS)
        self.qos = qos
        self._current = self._subscribe(qos)

    def tick(self, now_ns: int) -> None:
        """Destroy the old subscription when its time is over; to be called a few times a second."""
        if self._old is not None and now_ns >= self._old[1]:
            self._node.destroy_subscription(self._old[0])
            self._old = None
            self._seen.clear()
            self._newest = None

    def close(self) -> None:
        """Destroy the subscriptions."""
        for subscription in (self._current, *(self._old or ())[:1]):
            self._node.destroy_subscription(subscription)
        self._old = None

    def _subscribe(self, qos: QoSProfile) -> Any:
        def receive(message: Any, info: Any) -> None:
            late = False
            if self._old is not None:
                key = _key(message, info)
                # Without a key, duplicates cannot be detected: only the current subscription delivers.
                if not (created[0] is self._current if key is None else self._is_new(key)):
                    return
                late = key is not None and self._is_late(key)
            self._deliver(message, info.get("publication_sequence_number"), late)

        def receive_without_info(message: Any) -> None:
            receive(message, {})

        def lost(event: Any) -> None:
            if created and created[0] is self._current:  # the new subscription receives what the old one loses
                self._on_lost(event.total_count_change)

        created: list[Any] = []  # the subscription, which does not exist yet when the callbacks are defined
        callback = receive if _callbacks_take_info() else receive_without_info
        subscription = self._create(callback, qos, lost)
        created.append(subscription)
        return subscription

    def _create(self, callback: Callable[..., None], qos: QoSProfile, lost: Callable[[Any], None]) -> Any:
        callbacks, unsupported = _event_classes()
        # Without rclpy's default callbacks: CameraInput logs incompatible QoS itself, with the names of the nodes.
        events = callbacks(message_lost=lost, use_default_callbacks=False)
        try:
            return self._node.create_subscription(self._kind, self._topic, callback, qos, event_callbacks=events)
        except unsupported:
            events = callbacks(use_default_callbacks=False)
            return self._node.create_subscription(self._kind, self._topic, callback, qos, event_callbacks=events)

    def _is_new(self, key: tuple[int, int, int]) -> bool:
        """Whether neither subscription has delivered the message yet; remembers it."""
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > _MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def _is_late(self, key: tuple[int, int, int]) -> bool:
        """Whether a newer message has been delivered; remembers the newest."""
        if self._newest is not None and key < self._newest:
            return True
        self._newest = key
        return False


def _key(message: Any, info: Any) -> tuple[int, int, int] | None:
    """Identifies a message, ordered by sending; None if neither source timestamp nor header stamp is set."""
    stamp = message.header.stamp
    key = (info.get("source_timestamp", 0), stamp.sec, stamp.nanosec)
    return key if any(key) else None


def _callbacks_take_info() -> bool:
    """Whether callbacks may take a MessageInfo: rclpy since Iron."""
    return hasattr(Subscription, "CallbackType")


def _event_classes() -> tuple[Any, type[Exception]]:
    try:
        from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
    except ImportError:  # Humble
        from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError
    return SubscriptionEventCallbacks, UnsupportedEventTypeError
