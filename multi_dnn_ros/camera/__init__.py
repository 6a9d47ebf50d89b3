"""Image sources of ``multi-dnn camera``: files, devices, recordings and generated scenes."""

import multi_dnn_ros.ros  # noqa: F401  makes rclpy and the message packages importable in this package
