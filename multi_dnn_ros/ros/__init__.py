"""The only code that touches ROS 2. Importing it puts rclpy on the path: the installed one, else our own.

After ``import multi_dnn_ros.ros`` the names ``rclpy``, ``sensor_msgs.msg`` and so on can be imported everywhere.
"""

from __future__ import annotations

try:
    import rclpy as rclpy
except ModuleNotFoundError as error:
    if error.name != "rclpy":  # rclpy is there, but something that it needs is not: say so, do not hide it
        raise
    from multi_dnn_ros import standalone

    standalone.install()
