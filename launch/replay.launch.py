"""Replays every frame of a recording through the node, with simulated time; the player waits for the results."""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, IncludeLaunchDescription, LogInfo, RegisterEventHandler
from launch.event_handlers import OnProcessExit, OnProcessIO
from launch.events import Shutdown
from launch.events.process import ProcessExited, ProcessIO
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

ARGUMENTS = {
    "bag": (None, "Recording to replay: a rosbag2 folder, or an .mcap or .db3 file."),
    "output": ("multi_dnn_results", "Folder for the recording of the results; it must not exist yet."),
    "storage": ("mcap", "Storage format of the results: mcap or sqlite3."),
    "rate": ("1.0", "Maximum playback speed relative to the recording; slower DNNs reduce it."),
    "start_timeout": (
        "120.0",
        "Maximum time in s until the node responds; loading its DNNs may take longer.",
    ),
    "namespace": ("", "Namespace of the node and of its topics."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameter file of the node.",
    ),
    "image": ("front/image_raw", "Image topic of camera `front` in the recording."),
    "compressed_image": ("front/image_raw/compressed", "Image topic of camera `front` if the images are compressed."),
}

#: Executable of the node in multi_dnn.launch.py.
NODE_EXECUTABLE = "multi_dnn_node"


class Ending:
    """Ends the node when the player has ended, then the launch, with the player's last output line and exit code.

    `ros2 launch` fails only if an event handler raises.
    """

    def __init__(self, player: Node) -> None:
        self._player = player
        self._printed = b""
        self._exit_code = None
        self._node_has_ended = False

    def read(self, event: ProcessIO) -> None:
        """Keep the output of the player; its last line is `N of M frames ...`."""
        self._printed += event.text

    def process_ended(self, event: ProcessExited, context: LaunchContext) -> list:
        """When the player has ended, end the node. If the node ends first, the player notices it and ends too.

        Other processes belong to an including launch file and are ignored.
        """
        if event.action is self._player:
            self._exit_code = event.returncode
        elif event.process_name.startswith(NODE_EXECUTABLE):  # launch names a process by its executable and a number
            self._node_has_ended = True
        else:
            return []
        if self._exit_code is None:
            return []
        if not self._node_has_ended:
            return [EmitEvent(event=Shutdown(reason="the replay has ended"))]
        last = (self._printed.decode(errors="replace").strip() or "the player printed nothing").splitlines()[-1]
        if self._exit_code:
            raise RuntimeError(last)
        return [LogInfo(msg=last)]


def generate_launch_description() -> LaunchDescription:
    """Starts node and player together: the player configures the node, plays, and ends after the last result."""
    passed = ("namespace", "params_file", "image", "compressed_image")
    node = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(
            PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "launch", "multi_dnn.launch.py"])
        ),
        launch_arguments={
            "use_sim_time": "true",
            "autostart": "false",
            **{name: LaunchConfiguration(name) for name in passed},
        }.items(),
    )
    # Not `ros2 bag play`, which keeps the pace of the recording, so that slow DNNs lose frames.
    player = Node(
        package="multi_dnn_ros",
        executable="multi-dnn",
        namespace=LaunchConfiguration("namespace"),
        arguments=[
            *("replay", LaunchConfiguration("bag"), LaunchConfiguration("output"), "--live"),
            *("--storage", LaunchConfiguration("storage"), "--rate", LaunchConfiguration("rate")),
            *("--start-timeout", LaunchConfiguration("start_timeout")),
        ],
        remappings=[  # the same as for the node, because the player resolves the topics of the cameras
            ("front/image_raw", LaunchConfiguration("image")),
            ("front/image_raw/compressed", LaunchConfiguration("compressed_image")),
        ],
        output="screen",
        emulate_tty=True,
    )
    ending = Ending(player)
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription(
        [
            *declared,
            RegisterEventHandler(OnProcessIO(target_action=player, on_stdout=ending.read)),
            RegisterEventHandler(OnProcessExit(on_exit=ending.process_ended)),
            node,
            player,
        ]
    )
