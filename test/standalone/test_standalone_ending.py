"""Nodes, executors and signal handlers leave nothing behind when they end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


def _dds_entities(node: Any) -> int:
    def count(entity: Any) -> int:
        return int(entity._get_children(entity._ref, None, 0))

    participant = node.context.participant
    return count(participant.publisher) + count(participant.subscriber) + count(participant.entity)


def test_destroying_frees_everything(ros: Any) -> None:
    from std_msgs.msg import String
    from std_srvs.srv import Empty

    keeper = ros.create_node("keeper")
    gc.collect()
    ros.spin_once(keeper, timeout_sec=0.0)  # creates the global executor
    before, threads = _dds_entities(keeper), threading.active_count()
    for _ in range(3):
        node = ros.create_node("passing")
        node.create_publisher(String, "t", 1)
        node.create_subscription(String, "t", print, 1)
        node.create_service(Empty, "s", lambda request, response: response)
        node.create_client(Empty, "s")
        node.create_timer(0.01, lambda: None)
        ros.spin_once(node, timeout_sec=0.02)
        assert _dds_entities(keeper) > before
        node.destroy_node()
        node.destroy_node()
        assert _dds_entities(keeper) == before
    assert threading.active_count() == threads
    assert ("passing", "/") not in keeper.get_node_names_and_namespaces()


def test_shutdown_leaves_no_thread_and_can_be_followed_by_init() -> None:
    import rclpy
    from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor

    tasks = len(os.listdir("/proc/self/task"))
    for _ in range(2):
        rclpy.init(args=[])
        node = rclpy.create_node("brief")
        executor = MultiThreadedExecutor(3)
        executor.add_node(node)
        timer = node.create_timer(0.01, rclpy.shutdown)
        with contextlib.suppress(ExternalShutdownException):  # or spin() returns; which happens first is undefined
            executor.spin()
        assert not rclpy.ok()
        executor.shutdown(30.0)
        assert timer.is_canceled()
        rclpy.try_shutdown()  # the timer's thread could not restore the signal handlers
        deadline = time.monotonic() + 30
        while len(os.listdir("/proc/self/task")) > tasks:
            assert time.monotonic() < deadline, [thread.name for thread in threading.enumerate()]
            time.sleep(0.01)


def _signal_while_spinning(node: Any, number: int) -> None:
    """Send a signal from a callback, because a signal before the spin would not end it."""

    def send_once() -> None:
        timer.cancel()
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()

    timer = node.create_timer(0.001, send_once)


def test_signals_end_spin() -> None:
    import rclpy
    from rclpy.executors import ExternalShutdownException

    before = signal.getsignal(signal.SIGINT)
    for number, error in ((signal.SIGTERM, ExternalShutdownException), (signal.SIGINT, KeyboardInterrupt)):
        rclpy.init(args=[])
        node = rclpy.create_node("stopped")
        _signal_while_spinning(node, number)
        with pytest.raises((error, ExternalShutdownException)):
            rclpy.spin(node)
        assert not rclpy.ok()
        node.destroy_node()
        rclpy.try_shutdown()
        assert signal.getsignal(signal.SIGINT) is before


_INTERRUPTED_WAKE_UP = """
import signal, threading
import rclpy
from rclpy.executors import SingleThreadedExecutor
from multi_dnn_ros.standalone import wait_set

set_trigger = wait_set.DdsGuardCondition.set

def interrupted(guard, triggered):
    if threading.current_thread() is threading.main_thread() and rclpy.ok():
        signal.raise_signal(signal.SIGTERM)
    set_trigger(guard, triggered)

rclpy.init(args=[])
executor = SingleThreadedExecutor()
wait_set.DdsGuardCondition.set = interrupted
executor.wake()
assert not rclpy.ok()
rclpy.try_shutdown()
print("ended")
"""


def test_a_signal_during_a_wake_up_ends_the_session(start_process: Callable[..., Any]) -> None:
    """The signal handler wakes the executors in the thread that it interrupts."""
    output, errors = start_process(_INTERRUPTED_WAKE_UP).communicate(timeout=60)
    assert output == "ended\n", errors
