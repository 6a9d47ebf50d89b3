"""The ROS 2 node.

Importing this package makes ``rclpy``, ``sensor_msgs.msg`` and the other message packages importable: those of the
installed ROS 2, or the standalone runtime if there is none.
"""

from __future__ import annotations

try:
    import rclpy as rclpy
except ModuleNotFoundError as error:
    if error.name != "rclpy":  # rclpy is installed, but one of its dependencies is not
        raise
    from multi_dnn_ros import standalone

    standalone.install()
