"""A node of this process, spun by an executor in another thread."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

_END_S = 10.0


class SpinningNode:
    """node: the node. failure: why its executor has ended, in one line; empty while it spins.

    A callback that raises ends the executor, and nothing is received afterwards, so callers that wait must check
    `failure`.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.failure = ""

    def spin(self, executor: Any) -> None:
        """Spin until the executor or its context is shut down or a callback raises, which sets :attr:`failure`."""
        try:
            executor.spin()
        except (ExternalShutdownException, ShutdownException):
            pass
        except Exception as error:  # whatever a callback raised
            self.node.get_logger().error(f"a callback failed: {traceback.format_exc()}")
            self.failure = f"a callback failed: {type(error).__name__}: {error}"


@contextmanager
def spinning(name: str, ros_args: list[str]) -> Iterator[SpinningNode]:
    """Initialize rclpy with `ros_args`, create a node and spin it; shuts down on exit."""
    # Use Python's KeyboardInterrupt: rclpy's handlers would shut the context down during the replay.
    rclpy.init(args=["--ros-args", *ros_args], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(name)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    spinner = SpinningNode(node)
    thread = threading.Thread(target=spinner.spin, args=(executor,), name="executor", daemon=True)
    thread.start()
    try:
        yield spinner
    finally:
        executor.shutdown()
        thread.join(_END_S)
        node.destroy_node()
        rclpy.try_shutdown()
