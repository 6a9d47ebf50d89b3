"""A recording through the node, every frame of it: the node on simulated time, and a player paced by its results."""

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
    "bag": (None, "The recording to play: a rosbag2 folder, or an .mcap or .db3 file."),
    "output": ("multi_dnn_results", "Folder of the new recording; it must not exist yet."),
    "storage": ("mcap", "Format of the new recording: mcap or sqlite3."),
    "rate": ("1.0", "Highest speed of the playback; DNNs that need longer slow it down."),
    "start_timeout": (
        "120.0",
        "Seconds to wait for the node to appear; loading its DNNs may take longer.",
    ),
    "namespace": ("", "Namespace of the node."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameters of the node.",
    ),
    "image": ("front/image_raw", "Image topic in the bag for camera `front`."),
    "compressed_image": ("front/image_raw/compressed", "The same for compressed images."),
}

#: The program of the node in multi_dnn.launch.py.
NODE_EXECUTABLE = "multi_dnn_node"


class Ending:
    """How the launch ends: the player first, then the node, then the player's last line and exit code as the launch's.

    `ros2 launch` ends with a failure only where something raised.
    """

    def __init__(self, player: Node) -> None:
        self._player = player
        self._printed = b""
        self._exit_code = None
        self._node_has_ended = False

    def read(self, event: ProcessIO) -> None:
        """Keep what the player prints; its last line says `N of M frames`."""
        self._printed += event.text

    def process_ended(self, event: ProcessExited, context: LaunchContext) -> list:
        """The player's end ends the node. A node that ends by itself is noticed by the player, which then ends.

        Other processes are of a launch file that includes this one: their ends mean nothing here.
        """
        if event.action is self._player:
            self._exit_code = event.returncode
        elif event.process_name.startswith(NODE_EXECUTABLE):  # launch calls a process by its program and a number
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
    """Node and player at once: the player configures the node, plays, and ends when the last result is out."""
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
    # Not `ros2 bag play`: it keeps the pace of the recording, and a DNN that is slower than that loses frames.
    player = Node(
        package="multi_dnn_ros",
        executable="multi-dnn",
        namespace=LaunchConfiguration("namespace"),
        arguments=[
            *("replay", LaunchConfiguration("bag"), LaunchConfiguration("output"), "--live"),
            *("--storage", LaunchConfiguration("storage"), "--rate", LaunchConfiguration("rate")),
            *("--start-timeout", LaunchConfiguration("start_timeout")),
        ],
        remappings=[  # as the node's: the player finds the cameras' topics by the same names
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
