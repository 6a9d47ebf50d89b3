"""A recording through the node: bag play with its own clock, the node on simulated time, its outputs recorded."""

from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    IncludeLaunchDescription,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

OUTPUTS = ".*/multi_dnn/.*|/diagnostics"
ARGUMENTS = {
    "bag": (None, "The recording to play: a rosbag2 folder or an .mcap file."),
    "output": ("multi_dnn_results", "Folder of the new recording; it must not exist yet."),
    "rate": ("1.0", "Speed of the playback."),
    "start_delay": ("15.0", "Seconds that the node gets to load its DNNs before the playback begins."),
    "namespace": ("", "Namespace of the node."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameters of the node.",
    ),
    "image": ("front/image_raw", "Image topic in the bag for camera `front`."),
    "compressed_image": ("front/image_raw/compressed", "The same for compressed images."),
}


def generate_launch_description() -> LaunchDescription:
    """Node and recorder at once, the playback after them; its end ends everything."""
    passed = ("namespace", "params_file", "image", "compressed_image")
    node = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(
            PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "launch", "multi_dnn.launch.py"])
        ),
        launch_arguments={"use_sim_time": "true", **{name: LaunchConfiguration(name) for name in passed}}.items(),
    )
    record = ExecuteProcess(
        cmd=["ros2", "bag", "record", "--use-sim-time", "--output", LaunchConfiguration("output"),
             "--regex", OUTPUTS],
        output="screen",
    )  # fmt: skip
    play = ExecuteProcess(
        # A recording of an earlier run holds that run's results: they must not mix with the new ones.
        cmd=["ros2", "bag", "play", LaunchConfiguration("bag"), "--clock", "--rate", LaunchConfiguration("rate"),
             "--exclude-regex", OUTPUTS],
        output="screen",
    )  # fmt: skip
    end = RegisterEventHandler(
        OnProcessExit(target_action=play, on_exit=[TimerAction(period=2.0, actions=[EmitEvent(event=Shutdown())])])
    )
    # The output exists already, say, or the disk is full: without a recorder the playback would be for nothing.
    not_recorded = RegisterEventHandler(
        OnProcessExit(target_action=record, on_exit=[EmitEvent(event=Shutdown(reason="the recorder has ended"))])
    )
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription(
        [
            *declared,
            end,
            not_recorded,
            node,
            record,
            TimerAction(period=LaunchConfiguration("start_delay"), actions=[play]),
        ]
    )
