"""Start the ROS 2 node that runs the DNNs.

The node subscribes to the camera topics, runs the DNNs concurrently and publishes lanes, detections and diagnostics. It
configures and activates itself unless parameter `autostart` is false. Ctrl-C ends it.

Parameters come from a YAML file; the package's config/multi_dnn.yaml explains each of them. What follows --ros-args
works as for any ROS 2 node and overrides the file.

examples:
  multi-dnn run
  multi-dnn run --params-file my_robot.yaml
  multi-dnn run --ros-args -p device:=cpu -p dnn.object.score_threshold:=0.3
  multi-dnn run --ros-args -r __ns:=/robot1 -r front/image_raw:=/camera/color/image_raw --log-level debug
"""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.options import Commands, add_command, add_params_file
from multi_dnn_ros.common.exit_on_signals import exit_on_signals
from multi_dnn_ros.common.garbage_collection import gc_paused


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    add_params_file(add_command(commands, "run", __doc__, run, takes_ros_args=True))


def run(args: argparse.Namespace) -> int:
    """Run the node until it is stopped."""
    arguments = ros_arguments(args.params_file, args.ros_args)
    with exit_on_signals():
        with gc_paused():
            from multi_dnn_ros.ros.process import run as run_node

        return run_node(arguments)


def ros_arguments(params_file: Path | None, ros_args: list[str]) -> list[str]:
    """The node's command line. Our parameter file comes first, so that all other arguments override it."""
    from multi_dnn_ros.common.resources import config_file

    if params_file is None:
        if "--params-file" in ros_args:
            return ["--ros-args", *ros_args]
        params_file = config_file("multi_dnn.yaml")
    return ["--ros-args", "--params-file", str(params_file), *ros_args]
