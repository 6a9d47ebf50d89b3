"""What an executor does between two callbacks, and that it misses nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest


def test_one_call_into_dds_checks_all_entities(ros: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking each would be a call each, before each callback, and a node has dozens of endpoints."""
    from rclpy.executors import SingleThreadedExecutor
    from std_msgs.msg import String

    from multi_dnn_ros.standalone.topics import Subscription
    from multi_dnn_ros.standalone.wait_set import ExecutorWaitSet

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

    calls: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return original(*arguments)

        monkeypatch.setattr(kind, name, counted)

    count(ExecutorWaitSet, "wait")
    count(Subscription, "is_ready")
    for number in range(50):
        publisher.publish(String(data=str(number)))
        spin_until(lambda number=number: len(got) == number + 2)  # type: ignore[misc]
    assert 50 <= calls["wait"] < 100
    assert calls["is_ready"] == 0


def test_entities_and_coroutines_that_never_wait_alternate(ros: Any, spin_until: Callable[..., None]) -> None:
    import asyncio

    from rclpy.executors import SingleThreadedExecutor
    from std_msgs.msg import String

    node = ros.create_node("one")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    got: list[str] = []
    steps: list[int] = []
    publisher = node.create_publisher(String, "topic", 10)
    node.create_subscription(String, "topic", lambda message: got.append(message.data), 10)
    spin_until(node, lambda: publisher.get_subscription_count() == 1)

    async def run() -> None:
        for step in range(1000):
            steps.append(step)
            await asyncio.sleep(0)

    task = executor.create_task(run)
    for number in range(10):
        publisher.publish(String(data=str(number)))
        begin = len(steps)
        while len(got) <= number and len(steps) < 900:
            executor.spin_once(timeout_sec=1.0)
        assert len(got) == number + 1
        assert len(steps) - begin < 50
    while not task.done():
        executor.spin_once(timeout_sec=1.0)
    assert len(steps) == 1000


def test_a_second_thread_that_spins_waits_no_longer_than_its_timeout(ros: Any) -> None:
    from rclpy.executors import SingleThreadedExecutor

    executor = SingleThreadedExecutor()
    executor.add_node(ros.create_node("one"))
    first = threading.Thread(target=executor.spin_once, kwargs={"timeout_sec": 30.0})
    first.start()
    second = threading.Thread(target=executor.spin_once, kwargs={"timeout_sec": 0.2})
    second.start()
    second.join(10.0)
    ended = not second.is_alive()
    while first.is_alive():  # a wake lets spin_once check again, so that only work ends it
        executor.create_task(lambda: None)
        first.join(0.1)
    second.join(10.0)
    assert ended


def test_the_wait_for_another_thread_counts_towards_the_timeout(ros: Any) -> None:
    from rclpy.executors import SingleThreadedExecutor

    executor = SingleThreadedExecutor()
    executor.add_node(ros.create_node("one"))
    wait_set = executor._wait_set
    timeouts_ns: list[int] = []
    wait = wait_set._wait

    def record(reference: Any, triggered: Any, capacity: int, timeout_ns: int) -> int:
        timeouts_ns.append(timeout_ns)
        return int(wait(reference, triggered, capacity, timeout_ns))

    wait_set._wait = record
    wait_set._lock.acquire()  # as another thread that waits
    threading.Timer(0.5, wait_set._lock.release).start()
    executor.spin_once(timeout_sec=1.0)
    assert timeouts_ns
    assert max(timeouts_ns) < 750_000_000  # about half a second of the second is left


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
