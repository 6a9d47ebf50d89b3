"""ROS 2 without an installation: the part of rclpy that a node uses, over Cyclone DDS from PyPI.

`install()` makes `import rclpy` and `from sensor_msgs.msg import Image` work. On the network, a process is an
ordinary participant of ROS 2 (Jazzy, rmw_cyclonedds), with topics, type hashes, QoS, the node list, parameter and life
cycle services. Features that are not implemented raise an explicit error on import or call.
"""

from multi_dnn_ros.standalone.finder import install
from multi_dnn_ros.standalone.missing import MissingFeatureError

__all__ = ["MissingFeatureError", "install"]
