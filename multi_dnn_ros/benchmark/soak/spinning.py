"""Runs a program with one node until a signal ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from multi_dnn_ros.ros.middleware import configure


def spin(name: str, make: Callable[[Node], Any]) -> Any:
    """Spin a node, with the package's receive buffers, until a signal comes.

    make: creates the node's subscriptions. Returns what `make` returned; None if the signal came before that.
    """
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
