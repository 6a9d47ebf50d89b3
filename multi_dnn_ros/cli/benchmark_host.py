"""``multi-dnn benchmark host``: CPU time per result."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from multi_dnn_ros.cli.arguments import positive, positive_float, size
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.log_folder import add_logs, log_folder
from multi_dnn_ros.cli.options import add_device, add_output, add_plot, add_seed, check_files
from multi_dnn_ros.common.errors import CommandError

_DETAILS = """\
The node and its engine processes process the images of cameras that run as separate processes. The report gives CPU
time by group of threads, context switches, page faults, latency and memory, per result and per frame. Every combination
of --cameras, --sizes, --encodings and --presets is run; --output is written after each of them. Linux only.

presets:
  builtin      the three built-in DNNs
  heavy_gpu    config/heavy_gpu.yaml; needs a GPU
  null         a DNN that computes nothing; shows the cost of everything except inference
  counter      for comparison: an rclpy subscriber that only counts images
  three_nodes  for comparison: one rclpy node per built-in DNN, written with ONNX Runtime and OpenCV; reads jpeg, rgb8
               and bgr8
  FILE         a parameter file, as for `multi-dnn run`
"""
_EXAMPLES = """\
multi-dnn benchmark host --output before.json
multi-dnn benchmark host --baseline before.json --plot host.png
multi-dnn benchmark host --presets builtin three_nodes counter --cameras 1 --sizes 1280x720 --rate 10
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare host."""
    parser = add_command(
        scenarios, "host", "measure the CPU time per result, by group of threads", details=_DETAILS,
        examples=_EXAMPLES, run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add("--presets", nargs="+", default=["builtin", "null", "counter", "three_nodes"], metavar="PRESET",
        help="what to measure, see above (default: builtin null counter three_nodes)")  # fmt: skip
    add("--cameras", nargs="+", type=positive, default=[1, 3], metavar="N", help="numbers of cameras (default: 1 3)")
    add("--sizes", nargs="+", type=size, default=[(640, 480), (1280, 720), (1920, 1080)], metavar="WxH",
        help="image sizes in pixels (default: 640x480 1280x720 1920x1080)")  # fmt: skip
    add("--encodings", nargs="+", choices=("jpeg", *ENCODINGS), default=["rgb8", "jpeg"], metavar="NAME",
        help="jpeg (CompressedImage) or encodings of sensor_msgs/Image (default: rgb8 jpeg)")  # fmt: skip
    add("--jpeg-decoder", choices=("auto", "cpu", "gpu"), default="auto",
        help="parameter jpeg_decoder of the cameras, for encoding jpeg (default: %(default)s)")  # fmt: skip
    add("--rate", type=positive_float, default=10.0, metavar="HZ", help="images per second and camera (default: 10)")
    add("--seconds", type=positive_float, default=15.0, metavar="S",
        help="length of each run in seconds (default: %(default)g)")  # fmt: skip
    add("--repeats", type=positive, default=1, metavar="N",
        help="runs per combination; medians are reported (default: %(default)s)")  # fmt: skip
    add_device(parser, default=None)
    add_seed(parser, "the images")
    add("--baseline", type=Path, metavar="JSON", help="compare with the figures in this file, written by --output")
    add_output(parser)
    add_plot(parser, "CPU time as stacked bars")
    add_logs(parser)


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output", "plot")
    if not Path("/proc/self/task").is_dir():
        raise CommandError("benchmark host reads the CPU time of threads from /proc, which this system does not have")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.host_cases import matrix
    from multi_dnn_ros.benchmark.host_cost import measure_host
    from multi_dnn_ros.benchmark.host_report import check_common, compare, host_table, plot_host, read_baseline
    from multi_dnn_ros.common.reporting import provenance, write_json

    baseline = read_baseline(args.baseline) if args.baseline is not None else None
    cases = matrix(args.presets, args.cameras, args.sizes, args.encodings, args.rate, args.repeats, args.jpeg_decoder)
    if baseline is not None:
        check_common(dict.fromkeys(case.name for case in cases), baseline)
    finished: dict[str, Any] = {}

    def keep(figures: dict[str, Any]) -> None:
        finished.update(figures)
        if baseline is not None:
            finished["baseline"] = compare(figures, baseline)
        if args.output is not None:
            write_json(args.output, {"scenario": "host", **provenance(), **finished})

    try:
        with log_folder(args.logs) as folder:
            measure_host(cases, folder, args.seconds, args.device, args.seed, print, keep)
    finally:  # also after Ctrl-C or the failure of a case, for what was measured before it
        if finished:
            print(host_table(finished))
            if args.output is not None:
                print(f"written to {args.output}")
            if args.plot is not None:
                plot_host(finished, args.plot)
                print(f"plot written to {args.plot}")
    return 0
