"""``multi-dnn demo``: camera and node on a generated road, with scores; or any video with any model."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import domain_id, natural, positive_float, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.demo_video import model_argument, run_video
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.settings.device_forms import DEVICE_FORMS
from multi_dnn_ros.settings.precisions import PRECISIONS

_DETAILS = """\
A camera process publishes images of a drive along a generated road, and the node processes them, both on the loopback
interface. The results are recorded and compared with the ground truth. The first drive uses the package's three DNNs,
the second the same DNNs decomposed and retrained, on the same road.

Prints rate, latency (from the image's stamp to the receipt of the result), scores and drops of every DNN, and what
decomposition changed: scores, MACs, latency, file size. Exit code 1 if a DNN published nothing or, with --video, if the
video is damaged.

Written to the output folder, and for the decomposed DNNs to its subfolder `decomposed`:
  overlay.mp4, overlay.png   the results drawn on the images
  summary.json               all figures, with machine, versions and command
  diagnostics.json           the node's diagnostics, message by message
  bag/                       a rosbag2 recording of images (JPEG), truth, results and diagnostics
  node.log, camera.log       output of the two processes
  comparison.json            figures of both drives (in the output folder only)

Files of an earlier demo are replaced. If a recording, result or log file with one of these names is not from a demo,
the command fails.

With --video every frame of a video goes through the DNNs of --model, each as NAME=MODEL; a NAME of lane, object or
pedestrian is also its role. MODEL is builtin:<name> or a file; torchvision networks need the parameter `weights`: name
them in a --params-file. With neither --model nor --params-file, the package's DNNs run. As there is no ground truth,
the table and summary.json contain the number of results by class and the times per frame. overlay.mp4, overlay.png,
summary.json and bag/ are written.
"""
_EXAMPLES = """\
multi-dnn demo
multi-dnn demo --output out/rain --seconds 60 --seed 12
multi-dnn demo --rate 30 --size 1280x720 --dnns original
multi-dnn demo --precision int8 --dnns original
multi-dnn demo --video drive.mp4
multi-dnn demo --video drive.mp4 --model object=yolox_nano.onnx --model lane=builtin:lane --output out/mine
"""
_MODELS = ", ".join(form for form in extensions.model_forms() if not form.startswith("torchvision:"))


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "demo", "run a camera and the node on a generated road, and score and record the results",
        details=_DETAILS, examples=_EXAMPLES, run=run, libraries=("pycocotools",),
    )  # fmt: skip
    add = parser.add_argument
    add("--output", type=Path, default=Path("out/demo"), metavar="DIR", help="output folder (default: out/demo)")
    add("--seconds", type=positive_float, metavar="S",
        help="seconds of each drive (default: 15), or of the part of --video to use (default: all)")  # fmt: skip
    add("--rate", type=positive_float, metavar="HZ", help="images per second (default: 10)")
    add("--size", type=size, metavar="WxH", help="size of the images in pixels (default: 640x480)")
    add("--seed", type=natural, metavar="N", help="random seed of the road (default: 8)")
    add("--precision", choices=PRECISIONS,
        help="number format of all DNNs (default: parameter `precision` of each); int8: fastest on a CPU with 8-bit "
        "dot products")  # fmt: skip
    which = parser.add_mutually_exclusive_group().add_argument
    which("--dnns", choices=("both", "original", "decomposed"),
          help="which of the package's DNNs to run; both: one drive each (default: both)")  # fmt: skip
    which("--params-file", type=Path, metavar="YAML", help="a single drive with the node's parameters from this file")
    add = parser.add_argument_group("any video").add_argument
    add("--video", type=Path, metavar="FILE", help="run on a video, an image or a folder of images instead of a road")
    add("--model", type=model_argument, action="append", default=[], metavar="NAME=MODEL",
        help=f"with --video: a DNN and its model: {_MODELS}; may be repeated "
        "(default: the package's DNNs)")  # fmt: skip
    add("--device", metavar="NAME",
        help=f"with --video: {DEVICE_FORMS} (default: parameter `device` of --params-file, or auto)")  # fmt: skip
    add = parser.add_argument
    add("--domain-id", type=domain_id, metavar="N",
        help="ROS_DOMAIN_ID of the demo (default: one that no process on this machine uses)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns 1 if a DNN published nothing or, with --video, if the video is damaged."""
    if args.video is not None:
        if args.model and args.params_file is not None:
            raise UsageError("--model and --params-file both name the DNNs; give only one of them")
        return run_video(args)
    for option in ("model", "device"):
        if getattr(args, option):
            raise UsageError(f"--{option} needs --video; a drive takes DNNs and device from its parameter file")
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.demo.comparison import SETS, run_both
    from multi_dnn_ros.demo.run import Demo
    from multi_dnn_ros.settings.params_file import read_params_file
    from multi_dnn_ros.training.scenes import MAX_SIDE, MIN_SIDE

    if args.size is not None and not all(MIN_SIDE <= side <= MAX_SIDE for side in args.size):
        width, height = args.size
        raise UsageError(
            f"--size {width}x{height}: each side of the road's images must be {MIN_SIDE} to {MAX_SIDE} pixels"
        )
    dnns = args.dnns or "both"
    demo = Demo(
        output=args.output,
        params_file=args.params_file or config_file(SETS["original" if dnns == "both" else dnns]),
        seconds=args.seconds or 15.0,
        rate_hz=args.rate or 10.0,
        size=args.size or (640, 480),
        seed=8 if args.seed is None else args.seed,
        domain_id=args.domain_id,
        precision=args.precision,
    )
    read_params_file(demo.params_file)  # before anything is written
    if args.params_file is None and dnns == "both":
        return run_both(demo)
    return demo.run().exit_code
