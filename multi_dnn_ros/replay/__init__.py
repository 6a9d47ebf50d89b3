"""Replays a recording through the engine, without a ROS graph: every frame, in order, without drops for lateness."""

import multi_dnn_ros.ros  # noqa: F401  makes rclpy and the message packages importable in this package
