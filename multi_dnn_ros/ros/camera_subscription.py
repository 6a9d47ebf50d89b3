"""A subscription whose QoS can change while images arrive: none is taken twice, none is lost unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from multi_dnn_ros.ros.middleware import is_standalone

#: How long the former subscription is kept, to deliver what it has and to bridge the new one's discovery.
_OVERLAP_NS = 2_000_000_000
#: Images of the overlap that are remembered.
_REMEMBERED = 1024


class CameraSubscription:
    """One topic. deliver: called with each message, the publisher's sequence number of it, None where the middleware
    does not tell, and whether a message that was sent after it has been delivered already. on_lost: called with how
    many messages the middleware says that it lost.
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
        self._former: tuple[Any, int] | None = None  # and when it ends
        self._seen: dict[tuple[int, int, int], None] = {}
        self._newest: tuple[int, int, int] | None = None  # of those
        self.qos = qos
        self._current = self._subscribe(qos)

    @property
    def topic_name(self) -> str:
        """The absolute name, remaps applied."""
        return str(self._current.topic_name)

    def change(self, qos: QoSProfile, now_ns: int) -> None:
        """Subscribe with another QoS. The former subscription goes on for two seconds (see :meth:`tick`)."""
        if self._former is not None:
            self._node.destroy_subscription(self._former[0])
        self._former = (self._current, now_ns + _OVERLAP_NS)
        self.qos = qos
        self._current = self._subscribe(qos)

    def tick(self, now_ns: int) -> None:
        """End the former subscription when its time is over; to be called a few times a second."""
        if self._former is not None and now_ns >= self._former[1]:
            self._node.destroy_subscription(self._former[0])
            self._former = None
            self._seen.clear()
            self._newest = None

    def close(self) -> None:
        """Take no more messages."""
        for subscription in (self._current, *(self._former or ())[:1]):
            self._node.destroy_subscription(subscription)
        self._former = None

    def _subscribe(self, qos: QoSProfile) -> Any:
        def receive(message: Any, info: Any) -> None:
            late = False
            if self._former is not None:
                key = _key(message, info)
                # Without a key nobody can tell what the other subscription has delivered: one delivers.
                if not (mine[0] is self._current if key is None else self._is_new(key)):
                    return
                late = key is not None and self._is_late(key)
            self._deliver(message, info.get("publication_sequence_number"), late)

        def receive_alone(message: Any) -> None:
            receive(message, {})

        def lost(event: Any) -> None:
            if mine and mine[0] is self._current:  # the former one loses what the new one gets
                self._on_lost(event.total_count_change)

        mine: list[Any] = []
        take = receive if _gives_info() else receive_alone
        subscription = self._create(take, qos, lost)
        mine.append(subscription)
        return subscription

    def _create(self, take: Callable[..., None], qos: QoSProfile, lost: Callable[[Any], None]) -> Any:
        if is_standalone():
            return self._node.create_subscription(self._kind, self._topic, take, qos)
        callbacks, unsupported = _event_classes()
        # Without rclpy's own callbacks: the node says itself, with names, what does not fit.
        events = callbacks(message_lost=lost, use_default_callbacks=False)
        try:
            return self._node.create_subscription(self._kind, self._topic, take, qos, event_callbacks=events)
        except unsupported:
            events = callbacks(use_default_callbacks=False)
            return self._node.create_subscription(self._kind, self._topic, take, qos, event_callbacks=events)

    def _is_new(self, key: tuple[int, int, int]) -> bool:
        """Whether neither of the two subscriptions has delivered the message; remembers it."""
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True

    def _is_late(self, key: tuple[int, int, int]) -> bool:
        """Whether a newer message was delivered; remembers the newest."""
        if self._newest is not None and key < self._newest:
            return True
        self._newest = key
        return False


def _key(message: Any, info: Any) -> tuple[int, int, int] | None:
    """What tells messages apart, in the order in which they were sent; None where nothing does."""
    stamp = message.header.stamp
    key = (info.get("source_timestamp", 0), stamp.sec, stamp.nanosec)
    return key if any(key) else None


def _gives_info() -> bool:
    """Whether callbacks may take the message's info: rclpy since Iron, and the standalone runtime."""
    return is_standalone() or hasattr(Subscription, "CallbackType")


def _event_classes() -> tuple[Any, type[Exception]]:
    try:
        from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
    except ImportError:  # Humble
        from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError
    return SubscriptionEventCallbacks, UnsupportedEventTypeError
