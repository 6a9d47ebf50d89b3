"""Image sources of ``multi-dnn camera``: files, devices and generated scenes."""

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
