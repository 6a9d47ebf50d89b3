"""Makes rclpy and the message packages importable before the test modules import them."""

import multi_dnn_ros.ros  # noqa: F401
