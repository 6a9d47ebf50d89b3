"""``multi-dnn demo``: the whole thing on a generated road, with scores."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import natural, positive_float, size

_DESCRIPTION = """\
Start a camera that drives along a generated road and the node as two processes on this machine's loopback interface,
record what they publish, and compare it with the known truth.

Prints rate, latency from the picture's stamp to the receipt of the result, scores and drops of every DNN, and leaves in
the output folder:
  overlay.mp4, overlay.png   the results drawn on the pictures
  summary.json               every figure, with machine, versions and command
  diagnostics.json           the node's own diagnostics, message by message
  bag/                       a rosbag2 recording of pictures (JPEG), truth, results and diagnostics
  node.log, camera.log       what the processes said

The exit code is 1 if any DNN published nothing.
"""
_EXAMPLES = """\
examples:
  multi-dnn demo
  multi-dnn demo --output out/rain --seconds 60 --seed 12
  multi-dnn demo --rate 30 --size 1280x720
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "demo",
        help="camera and node as two processes on a generated road, with scores, video and recording",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("out/demo"), metavar="FOLDER", help="default: out/demo")
    add("--seconds", type=positive_float, default=30.0, metavar="S", help="length of the drive (default: 30)")
    add("--rate", type=positive_float, default=10.0, metavar="HZ", help="pictures a second (default: 10)")
    add("--size", type=size, default=(640, 480), metavar="WxH", help="of the pictures (default: 640x480)")
    add("--seed", type=natural, default=8, help="of the road (default: 8)")
    add("--params-file", type=Path, metavar="YAML", help="the node's parameters (default: config/multi_dnn.yaml)")
    add("--domain-id", type=natural, metavar="N", help="ROS_DOMAIN_ID of the demo (default: one nobody uses here)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 1 if a DNN published nothing."""
    from multi_dnn_ros.demo.run import Demo

    return Demo(
        output=args.output,
        seconds=args.seconds,
        rate_hz=args.rate,
        size=args.size,
        seed=args.seed,
        params_file=args.params_file,
        domain_id=args.domain_id,
    ).run()
