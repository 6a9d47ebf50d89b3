"""Listens to topics in a separate ROS context, while a command runs in this process or another."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile

from multi_dnn_ros.ros.result_messages import LATCHED


class Listener:
    """A context manager that keeps all messages, with their times of receipt.

    latched: the topics whose publishers keep their last message.
    """

    def __init__(
        self, topics: dict[str, type], domain: int, depth: int = 100, latched: frozenset[str] = frozenset()
    ) -> None:
        self.messages: dict[str, list[Any]] = {topic: [] for topic in topics}
        self.times: dict[str, list[float]] = {topic: [] for topic in topics}
        self._changed = threading.Condition()
        self._context = Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = rclpy.create_node("listener", context=self._context)
        for topic, kind in topics.items():
            qos = LATCHED if topic in latched else QoSProfile(depth=depth)
            self.node.create_subscription(kind, topic, self._receiver(topic), qos)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException, ShutdownException):
            self._executor.spin()

    def _receiver(self, topic: str) -> Callable[[Any], None]:
        def receive(message: Any) -> None:
            with self._changed:
                self.messages[topic].append(message)
                self.times[topic].append(time.monotonic())
                self._changed.notify_all()

        return receive

    def wait(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Wait until the condition holds. Raises AssertionError with the message counts if it does not hold in time."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise AssertionError({topic: len(messages) for topic, messages in self.messages.items()})

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()
        self._thread.join(10.0)
        self.node.destroy_node()  # a real rclpy frees the DDS participant only when its nodes are gone
        rclpy.shutdown(context=self._context)
        assert not self._thread.is_alive()
