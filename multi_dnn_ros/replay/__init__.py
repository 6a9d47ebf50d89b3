"""A recording through the engine, without a ROS graph: every frame, in order, none dropped for being late."""

import multi_dnn_ros.ros  # noqa: F401  makes rclpy and the message packages importable in this room
