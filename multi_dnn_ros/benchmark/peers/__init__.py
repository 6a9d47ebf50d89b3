"""Programs that do without this package what it does, for `multi-dnn benchmark host`.

Each is run as a module, and needs rclpy, which the import makes importable.
"""

import multi_dnn_ros.ros  # noqa: F401
