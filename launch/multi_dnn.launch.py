"""Starts the node. Include it from the launch file of a robot, or run it with `ros2 launch`."""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

from multi_dnn_ros.settings.params_file import require_parameters

NODE_NAME = "multi_dnn"
ARGUMENTS = {
    "namespace": ("", "Namespace of the node and of its topics."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameter file. The default runs the three built-in DNNs on one camera, `front`.",
    ),
    "use_sim_time": ("false", "Use the time of topic /clock."),
    "autostart": ("true", "Configure and activate the node when it starts; if false, wait for `ros2 lifecycle set`."),
    "log_level": ("info", "Log level of the node: debug, info, warn, error or fatal."),
    "respawn": ("false", "Restart the node if its process ends."),
    "image": ("front/image_raw", "Image topic of camera `front`, relative to the namespace unless it starts with /."),
    "compressed_image": ("front/image_raw/compressed", "Topic of camera `front` if its transport is `compressed`."),
}
#: log_level applies to all loggers, because the name of the node's logger depends on the namespace. These libraries log
#: only warnings.
LIBRARIES = ("rcl", "rmw_cyclonedds_cpp", "rmw_fastrtps_cpp")


def check_params_file(context: LaunchContext) -> None:
    """Fail if the file is missing or has no parameters for the node; launch_ros would start the node anyway."""
    pushed = context.launch_configurations.get("ros_namespace")  # by PushRosNamespace of an including launch file
    namespace = prefix_namespace(pushed, LaunchConfiguration("namespace").perform(context)) or "/"
    node = prefix_namespace(make_namespace_absolute(namespace), NODE_NAME)
    require_parameters([LaunchConfiguration("params_file").perform(context)], node)


def generate_launch_description() -> LaunchDescription:
    """The launch arguments, the check of the parameter file, and the node."""
    node = LifecycleNode(  # an including launch file can wait for its states, as replay.launch.py does
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
        respawn_delay=1.0,  # seconds; launch does not accept a substitution here
        output="screen",
        emulate_tty=True,
    )
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=check_params_file), node])
