"""Plays a recording to the node with `ros2 bag play`, at the recording's pace and with its time.

The player waits until the node is active. At the end the node logs for each DNN and camera how many frames it was
offered and how many it published. `multi-dnn replay` needs no topics, loses no frame and records the results.
"""

from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.event_handlers import OnStateTransition
from launch_ros.substitutions import FindPackageShare

ARGUMENTS = {
    "bag": (None, "Recording to play: a rosbag2 folder, or an .mcap or .db3 file."),
    "rate": ("1.0", "Playback speed relative to the recording."),
    "namespace": ("", "Namespace of the node and of its topics."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameter file of the node.",
    ),
    "image": ("front/image_raw", "Image topic of camera `front` in the recording."),
    "compressed_image": ("front/image_raw/compressed", "Image topic of camera `front` if the images are compressed."),
}
#: Executable of the node in multi_dnn.launch.py; launch names a process by its executable and a number.
NODE_EXECUTABLE = "multi_dnn_node"
#: Time in s for the last frames to reach the node after the player has ended; the node finishes those that it has.
LAST_FRAMES_S = 1.0


def fail(reason: str) -> OpaqueFunction:
    """An action that ends the launch with exit code 1, which needs an exception."""

    def raise_error(context: LaunchContext) -> None:
        raise RuntimeError(reason)

    return OpaqueFunction(function=raise_error)


def player_ended(event: ProcessExited, context: LaunchContext) -> list:
    """End the launch when the player has ended; with an error if the player failed."""
    if event.returncode and not context.is_shutdown:
        return [fail(f"ros2 bag play ended with exit code {event.returncode}")]
    return [TimerAction(period=LAST_FRAMES_S, actions=[EmitEvent(event=Shutdown(reason="the recording has ended"))])]


def process_ended(event: ProcessExited, context: LaunchContext) -> list:
    """End the launch with an error if the node ends first."""
    if event.process_name.startswith(NODE_EXECUTABLE) and not context.is_shutdown:
        return [fail("the node ended before the recording")]
    return []


def generate_launch_description() -> LaunchDescription:
    """Starts the node, and the player paused; resumes the player when the node is active."""
    passed = ("namespace", "params_file", "image", "compressed_image")
    node = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(
            PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "launch", "multi_dnn.launch.py"])
        ),
        launch_arguments={
            "use_sim_time": "true",
            **{name: LaunchConfiguration(name) for name in passed},
        }.items(),
    )
    player = ExecuteProcess(
        cmd=[
            *("ros2", "bag", "play", LaunchConfiguration("bag"), "--start-paused", "--disable-keyboard-controls"),
            *("--clock", "100", "--rate", LaunchConfiguration("rate")),
        ],
        output="screen",
    )
    resume = ExecuteProcess(  # waits for the service
        cmd=["ros2", "service", "call", "/rosbag2_player/resume", "rosbag2_interfaces/srv/Resume"], output="log"
    )
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription(
        [
            *declared,
            RegisterEventHandler(OnStateTransition(goal_state="active", entities=[resume])),
            RegisterEventHandler(
                OnStateTransition(
                    start_state="configuring", goal_state="unconfigured", entities=[fail("the node was not configured")]
                )
            ),
            RegisterEventHandler(OnProcessExit(target_action=player, on_exit=player_ended)),
            RegisterEventHandler(OnProcessExit(on_exit=process_ended)),
            node,
            player,
        ]
    )
