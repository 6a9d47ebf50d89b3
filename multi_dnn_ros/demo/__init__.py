"""``multi-dnn demo``: a camera and a node as two processes, recorded and scored by a third."""

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
