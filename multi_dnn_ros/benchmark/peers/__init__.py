"""Programs that `multi-dnn benchmark host` compares with this package's node.

Each is run as a module. They need rclpy, which the import below makes importable.
"""

import multi_dnn_ros.ros  # noqa: F401
