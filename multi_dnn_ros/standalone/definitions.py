"""Interface definitions missing from the type store of `rosbags`: vision_msgs, services, and default values of fields.

The store has the messages of ROS 2 Jazzy without vision_msgs and services, and has no default values. These are the
field lists of the public interface packages, in the .msg language, so that the type hashes (RIHS01) equal those of a
ROS 2 installation.
"""

from __future__ import annotations

from typing import Final, TypeAlias

MESSAGES: Final[dict[str, str]] = {
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "vision_msgs/msg/BoundingBox2DArray": "std_msgs/Header header\nvision_msgs/BoundingBox2D[] boxes",
    "vision_msgs/msg/BoundingBox3D": "geometry_msgs/Pose center\ngeometry_msgs/Vector3 size",
    "vision_msgs/msg/BoundingBox3DArray": "std_msgs/Header header\nvision_msgs/BoundingBox3D[] boxes",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score",
    "vision_msgs/msg/ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose"
    ),
    "vision_msgs/msg/Classification": "std_msgs/Header header\nvision_msgs/ObjectHypothesis[] results",
    "vision_msgs/msg/Detection2D": (
        "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nstring id"
    ),
    "vision_msgs/msg/Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections",
    "vision_msgs/msg/Detection3D": (
        "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox3D bbox\nstring id"
    ),
    "vision_msgs/msg/Detection3DArray": "std_msgs/Header header\nvision_msgs/Detection3D[] detections",
    "vision_msgs/msg/VisionClass": "uint16 class_id\nstring class_name",
    "vision_msgs/msg/LabelInfo": "std_msgs/Header header\nvision_msgs/VisionClass[] class_map\nfloat32 threshold",
    "vision_msgs/msg/VisionInfo": (
        "std_msgs/Header header\nstring method\nstring database_location\nint32 database_version"
    ),
    "rcl_interfaces/msg/LoggerLevel": (
        "uint8 LOG_LEVEL_UNKNOWN=0\nuint8 LOG_LEVEL_DEBUG=10\nuint8 LOG_LEVEL_INFO=20\nuint8 LOG_LEVEL_WARN=30\n"
        "uint8 LOG_LEVEL_ERROR=40\nuint8 LOG_LEVEL_FATAL=50\nstring name\nuint32 level"
    ),
    "rcl_interfaces/msg/SetLoggerLevelsResult": "bool successful\nstring reason",
}

SERVICES: Final[dict[str, tuple[str, str]]] = {
    "example_interfaces/srv/AddTwoInts": ("int64 a\nint64 b", "int64 sum"),
    "lifecycle_msgs/srv/ChangeState": ("lifecycle_msgs/Transition transition", "bool success"),
    "lifecycle_msgs/srv/GetAvailableStates": ("", "lifecycle_msgs/State[] available_states"),
    "lifecycle_msgs/srv/GetAvailableTransitions": (
        "",
        "lifecycle_msgs/TransitionDescription[] available_transitions",
    ),
    "lifecycle_msgs/srv/GetState": ("", "lifecycle_msgs/State current_state"),
    "rcl_interfaces/srv/DescribeParameters": ("string[] names", "rcl_interfaces/ParameterDescriptor[] descriptors"),
    "rcl_interfaces/srv/GetLoggerLevels": ("string[] names", "rcl_interfaces/LoggerLevel[] levels"),
    "rcl_interfaces/srv/GetParameters": ("string[] names", "rcl_interfaces/ParameterValue[] values"),
    "rcl_interfaces/srv/GetParameterTypes": ("string[] names", "uint8[] types"),
    "rcl_interfaces/srv/ListParameters": (
        "uint64 DEPTH_RECURSIVE=0\nstring[] prefixes\nuint64 depth",
        "rcl_interfaces/ListParametersResult result",
    ),
    "rcl_interfaces/srv/SetLoggerLevels": (
        "rcl_interfaces/LoggerLevel[] levels",
        "rcl_interfaces/SetLoggerLevelsResult[] results",
    ),
    "rcl_interfaces/srv/SetParameters": (
        "rcl_interfaces/Parameter[] parameters",
        "rcl_interfaces/SetParametersResult[] results",
    ),
    "rcl_interfaces/srv/SetParametersAtomically": (
        "rcl_interfaces/Parameter[] parameters",
        "rcl_interfaces/SetParametersResult result",
    ),
    "std_srvs/srv/Empty": ("", ""),
    "std_srvs/srv/SetBool": ("bool data", "bool success\nstring message"),
    "std_srvs/srv/Trigger": ("", "bool success\nstring message"),
}

Default: TypeAlias = bool | int | float | str | bytes | tuple[bool | int | float | str | bytes, ...]

# Only default values other than zero, False and "".
DEFAULTS: Final[dict[tuple[str, str], Default]] = {
    ("geometry_msgs/msg/Quaternion", "w"): 1.0,
    ("sensor_msgs/msg/NavSatStatus", "status"): -2,
}
