"""What an executor does between two callbacks, and that it misses nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest


def test_only_entities_whose_condition_triggered_are_checked(ros: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check is a call into DDS, and a node has dozens of endpoints."""
    from rclpy.executors import SingleThreadedExecutor
    from std_msgs.msg import String

    from multi_dnn_ros.standalone.topics import Subscription

    node = ros.create_node("one")
    executor = SingleThreadedExecutor()
    executor.add_node(node)

    def spin_until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 30.0
        while not condition():
            assert time.monotonic() < end
            executor.spin_once(timeout_sec=0.05)

    got: list[str] = []
    for number in range(20):
        node.create_subscription(String, f"quiet_{number}", lambda message: None, 10)
    node.create_subscription(String, "busy", lambda message: got.append(message.data), 10)
    publisher = node.create_publisher(String, "busy", 10)
    spin_until(lambda: publisher.get_subscription_count() == 1)
    executor.spin_once(timeout_sec=0.05)  # waits for all of them
    publisher.publish(String(data="first"))
    spin_until(lambda: got == ["first"])

    checks: Counter[str] = Counter()
    is_ready = Subscription.is_ready

    def count_check(subscription: Subscription) -> bool:
        checks[subscription.topic] += 1
        return is_ready(subscription)

    monkeypatch.setattr(Subscription, "is_ready", count_check)
    for number in range(50):
        publisher.publish(String(data=str(number)))
        spin_until(lambda number=number: len(got) == number + 2)  # type: ignore[misc]
    assert checks["busy"] >= 50
    assert sum(count for topic, count in checks.items() if topic != "busy") < 50


def test_entities_of_other_threads_are_served_while_messages_arrive(ros: Any, spin_until: Callable[..., None]) -> None:
    from std_msgs.msg import String

    node = ros.create_node("one")
    publisher = node.create_publisher(String, "busy", 10)
    got: list[str] = []
    later: list[str] = []

    def receive(message: Any) -> None:
        got.append(message.data)
        publisher.publish(String(data="again"))  # the executor is never idle

    def add() -> None:
        node.create_subscription(String, "later", lambda message: later.append(message.data), 10)
        other = node.create_publisher(String, "later", 10)
        spun.wait(5.0)
        other.publish(String(data="served"))

    node.create_subscription(String, "busy", receive, 10)
    spin_until(node, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(String(data="first"))
    spin_until(node, lambda: len(got) > 5)
    spun = threading.Event()
    thread = threading.Thread(target=add)
    thread.start()
    spin_until(node, lambda: node.count_subscribers("later") == 1)
    spun.set()
    spin_until(node, lambda: later == ["served"])
    thread.join()


def test_the_subscription_count_counts_connected_subscriptions(ros: Any, spin_until: Callable[..., None]) -> None:
    from std_msgs.msg import String

    node = ros.create_node("one")
    publisher = node.create_publisher(String, "topic", 10)
    assert publisher.get_subscription_count() == 0
    subscriptions = [node.create_subscription(String, "topic", lambda message: None, 10) for _ in range(3)]
    spin_until(node, lambda: publisher.get_subscription_count() == 3)
    node.destroy_subscription(subscriptions[0])
    spin_until(node, lambda: publisher.get_subscription_count() == 2)
