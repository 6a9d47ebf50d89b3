"""Reads and writes rosbag2 recordings (MCAP and sqlite3) without a ROS graph, through the rosbags library.

Messages are CDR bytes; deserialize them with ``rclpy.serialization``.
"""

from multi_dnn_ros.bags.reader import BagReader
from multi_dnn_ros.bags.storage_file import BagError, BagMessage, BagTopic
from multi_dnn_ros.bags.writer import BagWriter

__all__ = ["BagError", "BagMessage", "BagReader", "BagTopic", "BagWriter"]
