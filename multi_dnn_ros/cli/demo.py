"""``multi-dnn demo``: camera and node on a generated road, with scores."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import natural, positive_float, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_seed

_DETAILS = """\
A camera process drives along a generated road and the node serves its images, both on the loopback interface. The
results are recorded and compared with the known truth. The first drive uses the package's three DNNs, the second
the same DNNs decomposed and retrained, on the same road.

Prints rate, latency (from the image's stamp to the receipt of the result), scores and drops of every DNN, and what
decomposition changed: scores, MACs, latency, file size. Exit code 1 if a DNN published nothing.

Written to the output folder, and for the decomposed DNNs to its subfolder `decomposed`:
  overlay.mp4, overlay.png   the results drawn on the images
  summary.json               all figures, with machine, versions and command
  diagnostics.json           the node's diagnostics, message by message
  bag/                       a rosbag2 recording of images (JPEG), truth, results and diagnostics
  node.log, camera.log       output of the two processes
  comparison.json            figures of both drives (in the output folder only)
"""
_EXAMPLES = """\
multi-dnn demo
multi-dnn demo --output out/rain --seconds 60 --seed 12
multi-dnn demo --rate 30 --size 1280x720 --dnns original
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "demo", "run camera and node on a generated road, and score and record the results",
        details=_DETAILS, examples=_EXAMPLES, run=run, libraries=("pycocotools",),
    )  # fmt: skip
    add = parser.add_argument
    add("--output", type=Path, default=Path("out/demo"), metavar="DIR", help="output folder (default: out/demo)")
    add("--seconds", type=positive_float, default=15.0, metavar="S",
        help="length of each drive in seconds (default: 15)")  # fmt: skip
    add("--rate", type=positive_float, default=10.0, metavar="HZ", help="images per second (default: 10)")
    add("--size", type=size, default=(640, 480), metavar="WxH", help="size of the images in pixels (default: 640x480)")
    add_seed(parser, "the road", 8)
    which = parser.add_mutually_exclusive_group().add_argument
    which("--dnns", choices=("both", "original", "decomposed"), default="both",
          help="which of the package's DNNs to run; both: one drive each (default: both)")  # fmt: skip
    which("--params-file", type=Path, metavar="YAML", help="a single drive with the node's parameters from this file")
    add("--domain-id", type=natural, metavar="N",
        help="ROS_DOMAIN_ID of the demo (default: one that no process on this machine uses)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns 1 if a DNN published nothing."""
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
