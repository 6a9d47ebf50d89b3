"""``multi-dnn demo``: the whole thing on a generated road, with scores."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import natural, positive_float, size

_DESCRIPTION = """\
Start a camera that drives along a generated road and the node as two processes on this machine's loopback interface,
record what they publish, and compare it with the known truth. First with the package's own three DNNs, then with the
same DNNs decomposed and retrained, one after the other on the same road.

Prints rate, latency from the picture's stamp to the receipt of the result, scores and drops of every DNN, then what
decomposition changed (scores, MACs, latency, file size), and leaves in the output folder, and for the decomposed DNNs
in the folder `decomposed` in it:
  overlay.mp4, overlay.png   the results drawn on the pictures
  summary.json               every figure, with machine, versions and command
  diagnostics.json           the node's own diagnostics, message by message
  bag/                       a rosbag2 recording of pictures (JPEG), truth, results and diagnostics
  node.log, camera.log       what the processes said
and in the output folder comparison.json, the figures of both.

The exit code is 1 if any DNN published nothing.
"""
_EXAMPLES = """\
examples:
  multi-dnn demo
  multi-dnn demo --output out/rain --seconds 60 --seed 12
  multi-dnn demo --rate 30 --size 1280x720 --dnns original
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
    add("--seconds", type=positive_float, default=15.0, metavar="S", help="length of each drive (default: 15)")
    add("--rate", type=positive_float, default=10.0, metavar="HZ", help="pictures a second (default: 10)")
    add("--size", type=size, default=(640, 480), metavar="WxH", help="of the pictures (default: 640x480)")
    add("--seed", type=natural, default=8, help="of the road (default: 8)")
    which = parser.add_mutually_exclusive_group().add_argument
    which("--dnns", choices=("both", "original", "decomposed"), default="both", help="of the package (default: both)")
    which("--params-file", type=Path, metavar="YAML", help="one drive, with the node's parameters from this file")
    add("--domain-id", type=natural, metavar="N", help="ROS_DOMAIN_ID of the demo (default: one nobody uses here)")
    parser.set_defaults(run=run, libraries=("pycocotools",))


def run(args: argparse.Namespace) -> int:
    """Run the demo; 1 if a DNN published nothing."""
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.demo.comparison import SETS, run_both
    from multi_dnn_ros.demo.run import Demo

    demo = Demo(
        output=args.output,
        params_file=args.params_file or config_file(SETS["original" if args.dnns == "both" else args.dnns]),
        seconds=args.seconds,
        rate_hz=args.rate,
        size=args.size,
        seed=args.seed,
        domain_id=args.domain_id,
    )
    if args.params_file is None and args.dnns == "both":
        return run_both(demo)
    return demo.run().exit_code
