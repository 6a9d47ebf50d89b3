"""``multi-dnn run``: the node."""

from __future__ import annotations

import argparse
from pathlib import Path

_DESCRIPTION = """\
Start the node: it subscribes to the cameras, runs the DNNs side by side and publishes lanes, detections and latency
diagnostics. It configures and activates by itself unless the parameter autostart is false, and ends with Ctrl-C.

Parameters come from a YAML file (default: the package's config/multi_dnn.yaml, which explains each of them); single
ones are overridden after --ros-args, which works as for any ROS 2 node.
"""
_EXAMPLES = """\
examples:
  multi-dnn run
  multi-dnn run --params-file my_robot.yaml
  multi-dnn run --ros-args -p device:=cpu -p dnn.object.score_threshold:=0.3
  multi-dnn run --ros-args -r __ns:=/robot1 -r front/image_raw:=/camera/color/image_raw --log-level debug
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "run",
        help="start the node",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--params-file", type=Path, metavar="YAML", help="parameters (default: config/multi_dnn.yaml)")
    parser.set_defaults(run=run, takes_ros_args=True)


def run(args: argparse.Namespace) -> int:
    """Run the node until it is told to stop."""
    arguments = ros_arguments(args.params_file, args.ros_args)
    from multi_dnn_ros.ros.process import run as run_node

    return run_node(arguments)


def ros_arguments(params_file: Path | None, ros_args: list[str]) -> list[str]:
    """The node's command line: our parameter file first, so that everything after it overrides it."""
    from multi_dnn_ros.common.resources import config_file

    if params_file is None:
        if "--params-file" in ros_args:
            return ["--ros-args", *ros_args]
        params_file = config_file("multi_dnn.yaml")
    return ["--ros-args", "--params-file", str(params_file), *ros_args]
