"""A recording through the node, every frame of it: the node on simulated time, and a player paced by its results."""

from launch import LaunchContext
from launch.actions import (
    EmitEvent,
    LogInfo,
)
from launch.events import Shutdown
from launch.events.process import ProcessExited, ProcessIO, SignalProcess
from launch.substitutions import PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

ARGUMENTS = {
    "bag": (None, "The recording to play: a rosbag2 folder, or an .mcap or .db3 file."),
    "output": ("multi_dnn_results", "Folder of the new recording; it must not exist yet."),
    "storage": ("mcap", "Format of the new recording: mcap or sqlite3."),
    "rate": ("1.0", "Highest speed of the playback; DNNs that need longer slow it down."),
    "start_timeout": ("120.0", "Seconds to wait for the node to come up; it may then load its DNNs as long as it takes."),
    "namespace": ("", "Namespace of the node."),
    "params_file": (
        PathJoinSubstitution([FindPackageShare("multi_dnn_ros"), "config", "multi_dnn.yaml"]),
        "Parameters of the node.",
    ),
    "image": ("front/image_raw", "Image topic in the bag for camera `front`."),
    "compressed_image": ("front/image_raw/compressed", "The same for compressed images."),
}


class Ending:
    """How the launch ends: with the player, whose last line is then the launch's last line, and its exit code."""

    def __init__(self, player: Node) -> None:
        self._player = player
        self._output = ""
        self._exit_code = None
        self._others_running = 0

    def read(self, event: ProcessIO) -> None:
        """What the player prints; its last line says `N of M frames`."""
        self._output += event.text.decode(errors="replace")

    def started(self) -> None:
        """A process beside the player has started."""
        self._others_running += 1

    def exited(self, event: ProcessExited, context: LaunchContext) -> list | None:
        """End the others after the player, and the player after the others; raise when not every frame was replayed.

        `ros2 launch` returns a failure only when something raised.
        """
        if event.action is self._player:
            self._exit_code = event.returncode
            if self._others_running:
                return [EmitEvent(event=Shutdown(reason="the replay has ended"))]
        else:
            self._others_running -= 1
            if self._exit_code is None:  # the player counts what it has, and ends
                return [EmitEvent(event=SignalProcess(signal_number="SIGINT", process_matcher=self._is_player))]
        if self._exit_code is None or self._others_running:
            return None
        lines = self._output.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "the player printed nothing")
        if self._exit_code:
            raise RuntimeError(last)
        return [LogInfo(msg=last)]
