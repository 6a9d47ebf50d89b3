"""Starts the node beside nav2 and robot_localization: their arguments, REP 105 frames, lane points for a costmap.

The node is that of multi_dnn.launch.py. docs/installation.md has a costmap layer that reads its lane points.
"""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, GroupAction, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution, ThisLaunchFileDir
from launch.utilities.type_utils import normalize_typed_substitution, perform_typed_substitution
from launch_ros.actions import Node, SetRemap
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

ARGUMENTS = {
    "namespace": ("", "Namespace of the node, of its topics, and of the topics tf and tf_static, as in nav2."),
    "use_sim_time": ("false", "Use the time of topic /clock."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameter file; it may be that of nav2 if it has a section for the node.",
    ),
    "autostart": (
        "true",
        "Configure and activate the node when it starts; with lifecycle_manager, the lifecycle manager does this.",
    ),
    "use_respawn": ("false", "Restart the node if its process ends."),
    "log_level": ("info", "Log level of the node: debug, info, warn, error or fatal."),
    "lifecycle_manager": ("false", "Start nav2's lifecycle manager for this node (package nav2_lifecycle_manager)."),
    "image": ("front/image_raw", "Image topic of camera `front`, relative to the namespace unless it starts with /."),
    "compressed_image": ("front/image_raw/compressed", "Topic of camera `front` if its transport is `compressed`."),
    "lane_points": ("lane_points", "Topic of the lane points in metres (PointCloud2) of camera `front`, DNN `lane`."),
    "base_frame": ("base_link", "Parent frame of the camera's static transform; must equal parameter vehicle_frame."),
    "camera_frame": ("front_camera_link", "Frame of the camera's body: x forward, y left, z up (REP 103)."),
    "camera_optical_frame": (
        "front_camera_optical_frame",
        "Optical frame, the frame_id of the images: x right, y down, z forward (REP 103).",
    ),
    "camera_pose": (
        "",
        "Static transform from base_frame to camera_frame, `x y z roll pitch yaw` in m and rad. Empty: another node, "
        "such as robot_state_publisher, publishes the transforms of the camera.",
    ),
}
#: Topic that the node publishes for camera `front` and DNN `lane`.
LANE_POINTS = "~/front/lane/ground_points"
NODE_NAME = "multi_dnn"  # as in multi_dnn.launch.py
#: Roll, pitch and yaw of the optical frame in the frame of the camera's body (REP 103).
OPTICAL = ("-1.5707963267948966", "0", "-1.5707963267948966")


def static_transform(name: str, parent: str, child: str, numbers: tuple[str, ...]) -> Node:
    """A publisher of one transform; numbers: x, y, z, roll, pitch, yaw."""
    options = ("--x", "--y", "--z", "--roll", "--pitch", "--yaw")
    return Node(
        package="tf2_ros",
        executable="static_transform_publisher",
        name=name,
        namespace=LaunchConfiguration("namespace"),
        arguments=[
            *(word for pair in zip(options, numbers, strict=True) for word in pair),
            *("--frame-id", parent, "--child-frame-id", child),
        ],
        output="screen",
    )


def camera_transforms(context: LaunchContext) -> list[Node]:
    """Publishers of the transforms from the base to the camera's body and to its optical frame; none without a pose."""
    pose = LaunchConfiguration("camera_pose").perform(context)
    if not pose.strip():
        return []
    numbers = tuple(pose.split())
    try:
        valid = len(numbers) == 6 and all(abs(float(number)) < float("inf") for number in numbers)
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(
            f"camera_pose = {pose!r}: must be empty or six numbers, `x y z` in m and `roll pitch yaw` in rad"
        )
    base = LaunchConfiguration("base_frame").perform(context)
    body = LaunchConfiguration("camera_frame").perform(context)
    optical = LaunchConfiguration("camera_optical_frame").perform(context)
    return [
        static_transform("front_camera_pose", base, body, numbers),
        static_transform("front_camera_optical", body, optical, ("0", "0", "0", *OPTICAL)),
    ]


def lifecycle_manager() -> Node:
    """nav2's manager, which configures and activates the node instead of the node itself."""
    return Node(
        package="nav2_lifecycle_manager",
        executable="lifecycle_manager",
        name="lifecycle_manager_multi_dnn",
        namespace=LaunchConfiguration("namespace"),
        parameters=[
            {
                "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
                "autostart": ParameterValue(LaunchConfiguration("autostart"), value_type=bool),
                "node_names": [NODE_NAME],
                "bond_timeout": 0.0,  # the node has no bond, which is a library of nav2's C++ nodes
                "service_timeout": 600.0,  # for releases after Jazzy, whose 5 s are too short for configuring
            }
        ],
        output="screen",
    )


def actions(context: LaunchContext) -> list:
    """The nodes, all with nav2's remaps of TF."""
    argument = normalize_typed_substitution(LaunchConfiguration("lifecycle_manager"), bool)
    managed = perform_typed_substitution(context, argument, bool)
    node = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution([ThisLaunchFileDir(), "multi_dnn.launch.py"])),
        launch_arguments={
            "namespace": LaunchConfiguration("namespace"),
            "use_sim_time": LaunchConfiguration("use_sim_time"),
            "params_file": LaunchConfiguration("params_file"),
            "autostart": "false" if managed else LaunchConfiguration("autostart"),
            "respawn": LaunchConfiguration("use_respawn"),
            "log_level": LaunchConfiguration("log_level"),
            "image": LaunchConfiguration("image"),
            "compressed_image": LaunchConfiguration("compressed_image"),
        }.items(),
    )
    remaps = [
        SetRemap("/tf", "tf"),
        SetRemap("/tf_static", "tf_static"),
        SetRemap(LANE_POINTS, LaunchConfiguration("lane_points")),
    ]
    managers = [lifecycle_manager()] if managed else []
    return [GroupAction([*remaps, *camera_transforms(context), *managers, node])]


def generate_launch_description() -> LaunchDescription:
    """The launch arguments and the nodes."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=actions)])
