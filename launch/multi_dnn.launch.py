"""The node, with what a robot's launch file wants to say about it."""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

from multi_dnn_ros.settings.params_sections import require_parameters

NODE_NAME = "multi_dnn"
ARGUMENTS = {
    "namespace": ("", "Namespace of the node and of its relative topics."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameters: cameras, DNNs, device. The default runs the package's own three DNNs on camera `front`.",
    ),
    "use_sim_time": ("false", "Take the time from /clock."),
    "autostart": ("true", "Configure and activate at start; false: wait for `ros2 lifecycle set`."),
    "log_level": ("info", "debug, info, warn, error or fatal."),
    "respawn": ("false", "Start the node again when it ends unexpectedly."),
    "image": ("front/image_raw", "Image topic of camera `front`, relative to the namespace unless it begins with /."),
    "compressed_image": ("front/image_raw/compressed", "The same for a camera whose transport is `compressed`."),
}
#: The level is for all loggers, as the node's own is called after its namespace; ROS 2's libraries are kept quiet.
LIBRARIES = ("rcl", "rmw_cyclonedds_cpp", "rmw_fastrtps_cpp")


def check_params_file(context: LaunchContext) -> None:
    """Ends the launch where the file says nothing to the node: launch_ros warns of a missing file and starts it."""
    around = context.launch_configurations.get("ros_namespace")  # of PushRosNamespace in a launch file around this one
    namespace = prefix_namespace(around, LaunchConfiguration("namespace").perform(context)) or "/"
    node = prefix_namespace(make_namespace_absolute(namespace), NODE_NAME)
    require_parameters(LaunchConfiguration("params_file").perform(context), node)


def generate_launch_description() -> LaunchDescription:
    """Arguments, then the node."""
    node = Node(
        package="multi_dnn_ros",
        executable="multi_dnn_node",
        name=NODE_NAME,
        namespace=LaunchConfiguration("namespace"),
        parameters=[
            LaunchConfiguration("params_file"),
            {
                "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
                "autostart": ParameterValue(LaunchConfiguration("autostart"), value_type=bool),
            },
        ],
        remappings=[
            ("front/image_raw", LaunchConfiguration("image")),
            ("front/image_raw/compressed", LaunchConfiguration("compressed_image")),
        ],
        arguments=[
            *("--ros-args", "--log-level", LaunchConfiguration("log_level")),
            *(word for name in LIBRARIES for word in ("--log-level", f"{name}:=warn")),
        ],
        respawn=LaunchConfiguration("respawn"),
        respawn_delay=1.0,  # seconds; launch takes no substitution here
        output="screen",
        emulate_tty=True,
    )
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=check_params_file), node])
