"""The ROS 2 node. Other packages that use rclpy import this one first, for its error where ROS 2 is missing."""

from __future__ import annotations

from multi_dnn_ros.common.extras import MissingExtra

try:
    import rclpy as rclpy
    import vision_msgs as vision_msgs  # the one message package that tools/ros_environment.py compiles
except ModuleNotFoundError as error:
    if error.name not in ("rclpy", "vision_msgs"):  # installed, but one of its dependencies is not
        raise
    raise MissingExtra(
        f"this needs {error.name} of ROS 2, which is not installed: source a ROS 2 installation (such as "
        '/opt/ros/jazzy/setup.bash), or pip install "multi_dnn_ros[ros]" and run tools/ros_environment.py '
        "(docs/installation.md)",
        name=error.name,
    ) from None
