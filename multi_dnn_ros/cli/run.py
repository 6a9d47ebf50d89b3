"""Start the ROS 2 node that runs the DNNs.

The node subscribes to the camera topics, runs the DNNs concurrently and publishes lanes, detections and diagnostics. It
configures and activates itself unless parameter `autostart` is false. Ctrl-C ends it.

Parameters come from a YAML file; docs/parameters.md explains each of them. What follows --ros-args
works as for any ROS 2 node and overrides the file.

examples:
  multi-dnn run --params-file my_robot.yaml
  multi-dnn run --ros-args -r __ns:=/robot1 -r front/image_raw:=/camera/color/image_raw --log-level debug
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from multi_dnn_ros.cli.options import Commands, add_command, add_options


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    add_options(add_command(commands, "run", __doc__, run, takes_ros_args=True), "--params-file")


def run(args: argparse.Namespace) -> int:
    """Run the node until it is stopped."""
    return run_node(ros_arguments(args.params_file, args.ros_args))


def ros_arguments(params_file: Path | None, ros_args: list[str]) -> list[str]:
    """The node's command line. Our parameter file comes first, so that all other arguments override it."""
    from multi_dnn_ros.common.resources import config_file

    if params_file is None:
        if "--params-file" in ros_args:
            return ["--ros-args", *ros_args]
        params_file = config_file("multi_dnn.yaml")
    return ["--ros-args", "--params-file", str(params_file), *ros_args]


def run_node(args: list[str] | None) -> int:
    """Run the node until it is stopped; the exit code. SIGINT and SIGTERM end it with 0 from the first moment on.

    Importing rclpy takes up to a second, of which an interrupt would make a traceback; there is nothing to tidy up yet.
    The node's process then sets handlers of its own. At the end both signals are ignored: a terminal and a launcher may
    each send one, and a second one would kill the interpreter while it exits.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os._exit(0))
    try:
        from multi_dnn_ros.ros.process import run

        return run(args)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
