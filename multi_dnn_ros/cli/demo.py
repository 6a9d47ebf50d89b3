"""Run a camera and the node on a generated road, and score and record the results.

A camera process publishes images of a drive along a generated road, and the node processes them, both on the loopback
interface. The results are recorded and compared with the ground truth. The DNNs are those of --params-file;
config/multi_dnn_small.yaml has the package's DNNs decomposed and retrained.

Prints rate, latency (from the image's stamp to the receipt of the result), scores and drops of every DNN. Exit code 1
if a DNN published nothing or, with --video, if the video is damaged.

Written to the output folder, where the files of an earlier demo are replaced:
  overlay.mp4, overlay.png   the results drawn on the images
  summary.json               all figures, with machine, versions and command
  bag/                       a rosbag2 recording of images (JPEG), truth, results and diagnostics
  node.log, camera.log       output of the two processes

With --video every frame of a video goes through the DNNs of --model, each as NAME=MODEL; a NAME of lane, object or
pedestrian is also its role. MODEL is builtin:<name> or a file; torchvision networks need the parameter `weights`: name
them in a --params-file. With neither --model nor --params-file, the package's DNNs run. As there is no ground truth,
the table and summary.json contain the number of results by class and the times per frame; there are no logs.

examples:
  multi-dnn demo
  multi-dnn demo --rate 30 --size 1280x720 --params-file config/multi_dnn_small.yaml
  multi-dnn demo --video drive.mp4 --model object=yolox_nano.onnx --model lane=builtin:lane --output out/mine
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import options
from multi_dnn_ros.cli.figures import rows_table
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.settings.forms import DEVICE_FORMS, model_forms

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig

_MODELS = ", ".join(form for form in model_forms() if not form.startswith("torchvision:"))
_NODE = "/multi_dnn"
#: Scores in the table, by their names in summary.json.
_SCORES = {"lane_f1": "lane F1", "map50": "mAP@0.5"}
_PERCENTILES = ("p50", "p95", "p99")


def add_parser(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = options.add_command(commands, "demo", __doc__, run, libraries=("pycocotools",))
    options.add_options(parser, "--params-file")
    add = parser.add_argument
    add("--output", type=Path, default=Path("out/demo"), metavar="DIR", help="output folder (default: out/demo)")
    add("--seconds", type=options.positive_float, metavar="S",
        help="seconds of the drive (default: 15), or of the part of --video to use (default: all)")  # fmt: skip
    add("--rate", type=options.positive_float, metavar="HZ", help="images per second (default: 10)")
    options.add_options(parser, "--size", help="size of the images in pixels (default: 640x480)")
    options.add_options(parser, "--seed", default=None, help="random seed of the road (default: 8)")
    add = parser.add_argument_group("any video").add_argument
    add("--video", type=Path, metavar="FILE", help="run on a video, an image or a folder of images instead of a road")
    add("--model", type=options.assignment("=", "NAME=MODEL, such as object=yolox_nano.onnx", str), action="append",
        default=[], metavar="NAME=MODEL",
        help=f"with --video: a DNN and its model, {_MODELS}; may be repeated")  # fmt: skip
    add("--device", type=options.device, metavar="NAME",
        help=f"with --video: {DEVICE_FORMS} (default: parameter `device` of --params-file, or auto)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns 1 if a DNN published nothing or, with --video, if the video is damaged."""
    for option in ("rate", "size", "seed") if args.video is not None else ("model", "device"):
        if getattr(args, option) not in (None, []):
            raise UsageError(f"--{option} {'is for the generated road, not for' if args.video else 'needs'} --video")
    if args.video is not None:
        return _run_video(args)
    options.read_config(args)  # before anything is imported or written
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.demo.drive import run_demo
    from multi_dnn_ros.training.scenes import MAX_SIDE, MIN_SIDE

    width, height = size = args.size or (640, 480)
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in size):
        allowed = f"each side of the road's images must be {MIN_SIDE} to {MAX_SIDE} pixels"
        raise UsageError(f"--size {width}x{height}: {allowed}")
    params_file = args.params_file or config_file("multi_dnn.yaml")
    seed = 8 if args.seed is None else args.seed
    summary = run_demo(args.output, params_file, args.seconds or 15.0, args.rate or 10.0, size, seed)
    print(rows_table([_live_row(name, figures) for name, figures in summary["dnns"].items()]))
    memory_mib = summary["node_peak_memory_bytes"] / 2**20
    print(f"peak resident memory of the node and its engine processes: {memory_mib:.0f} MiB")
    if not summary["node_ended_cleanly"]:
        print("warning: the node did not end within 10 s of SIGINT and was killed")
    return _closing(args.output, summary["silent"], "; see node.log there")


def _live_row(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    latency, accounts = figures.get("latency_ms", {}), figures["accounts"] or {}
    scores = {shown: figures[score] for score, shown in _SCORES.items() if score in figures}
    return {
        "DNN": name, "Hz": figures.get("rate_hz", 0.0), **{f"{each} ms": latency.get(each) for each in _PERCENTILES},
        **{each: accounts.get(each, "?") for each in ("offered", "published")},
        "dropped": accounts.get("dropped") or "none", "vs ground truth": scores or "nothing to compare",
    }  # fmt: skip


def _closing(output: Path, silent: list[str], where: str = "") -> int:
    """Say what was written, and which DNNs have no result; the exit code."""
    print(f"written to {output}: overlay.mp4, overlay.png, summary.json, bag/")
    if silent:
        print(f"FAILED: no result from {', '.join(silent)}{where}")
    return 1 if silent else 0


def _run_video(args: argparse.Namespace) -> int:
    """Run the DNNs on every frame of the video. Returns 1 if a DNN has no result, or the video is damaged."""
    if args.model and args.params_file is not None:
        raise UsageError("--model and --params-file both name the DNNs; give only one of them")
    if not args.video.exists():
        raise UsageError(f"--video {args.video} does not exist; expected a video, an image or a folder of images")
    config = _config(args)
    from multi_dnn_ros.demo.video import run_video
    from multi_dnn_ros.serving.process_settings import configure_malloc

    configure_malloc()
    summary = run_video(config, args.video, args.output, args.seconds, _NODE)
    print(rows_table([
        {"DNN": name, **{key: each[key] for key in ("offered", "published", "dropped", "by_class")},
         **{f"{key} ms": each["inference_ms"].get(key) for key in _PERCENTILES}}
        for name, each in summary["dnns"].items()
    ]))  # fmt: skip
    for damage in summary["input_damage"]:
        print(f"warning: {damage}", file=sys.stderr)
    code = _closing(args.output, [name for name, each in summary["dnns"].items() if not each["published"]])
    return 1 if summary["input_damage"] else code


def _config(args: argparse.Namespace) -> NodeConfig:
    """The DNNs of --model on one camera; without --model those of the parameter file on its first camera."""
    from multi_dnn_ros.settings.flat_parameters import to_config

    if not args.model:
        config = options.read_config(args)
        camera = next(iter(config.cameras))
        dnns = {
            name: dnn.model_copy(update={"cameras": []})
            for name, dnn in config.dnns.items()
            if not dnn.cameras or camera in dnn.cameras
        }
        return config.model_copy(update={"cameras": {camera: config.cameras[camera]}, "dnns": dnns})
    models = dict(args.model)
    if len(models) < len(args.model):
        raise UsageError("--model names a DNN twice; give each DNN its own name")
    flat: dict[str, Any] = {"cameras": ["front"], "dnns": list(models), "device": args.device or "auto"}
    for name, model in models.items():
        flat |= {f"dnn.{name}.role": name, f"dnn.{name}.model": model}
    config = to_config(flat)
    from multi_dnn_ros.models.decoder_choice import with_assumed_labels

    for name, dnn in config.dnns.items():
        complete = with_assumed_labels(name, dnn)
        if complete is not dnn:
            print(f"{dnn.model} has no class names; assumed: {', '.join(complete.labels[:3])} ...", file=sys.stderr)
            config.dnns[name] = complete
    return config
