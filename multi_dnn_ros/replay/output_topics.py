"""Output topics of a DNN by role. Imports neither PyTorch nor rclpy."""

from __future__ import annotations

from multi_dnn_ros.settings.schema import Role

#: Topics below `~/<camera>/<dnn>/` and their types, by role.
OUTPUT_TOPICS: dict[Role, dict[str, str]] = {
    "lane": {"mask": "sensor_msgs/msg/Image", "points": "sensor_msgs/msg/PointCloud2"},
    "object": {"detections": "vision_msgs/msg/Detection2DArray"},
    "pedestrian": {"detections": "vision_msgs/msg/Detection2DArray"},
}
