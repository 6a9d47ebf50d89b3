"""``multi-dnn demo``: a camera and a node as two processes, recorded and scored by a third."""

import multi_dnn_ros.ros  # noqa: F401  makes rclpy and the message packages importable
