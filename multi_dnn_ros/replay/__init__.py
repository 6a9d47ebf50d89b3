"""Replays a recording through the engine or a running node: every frame, in order; none is dropped for being late."""

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
