"""Programs that `multi-dnn benchmark host` compares with this package's node. Each is run as a module."""

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
