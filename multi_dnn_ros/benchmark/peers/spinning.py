"""How a program with one node runs until a signal ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from multi_dnn_ros.ros.middleware import configure


def spin(name: str, make: Callable[[Node], Any]) -> Any:
    """Spin a node whose subscriptions `make` creates; what that returns. With the package's receive buffers."""
    configure()
    rclpy.init(args=[])
    made = None
    try:
        node = rclpy.create_node(name)
        made = make(node)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        rclpy.try_shutdown()
    return made
