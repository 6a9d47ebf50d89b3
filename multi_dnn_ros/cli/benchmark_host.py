"""``multi-dnn benchmark host``: what a result costs the CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import natural, positive, positive_float, size
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.extras import require

_DESCRIPTION = """\
CPU time per result and per frame of the node and its engine processes, by groups of threads, beside cameras in
processes of their own; with context switches, page faults, latency and memory. Runs every combination of --cameras,
--sizes, --encodings and --presets. It needs Linux.

presets:
  builtin      the package's three networks
  heavy_gpu    config/heavy_gpu.yaml; needs a GPU
  null         a network that computes nothing: what is left is the cost of everything else
  counter      a peer: an rclpy subscriber that only counts the images
  three_nodes  a peer: three rclpy nodes, one for each of the package's networks, written with ONNX Runtime and OpenCV
  FILE         a parameter file, as for `multi-dnn run`
"""
_EXAMPLES = """\
examples:
  multi-dnn benchmark host --output before.json
  multi-dnn benchmark host --baseline before.json --plot host.png
  multi-dnn benchmark host --presets builtin three_nodes counter --cameras 1 --sizes 1280x720 --rate 10
"""


def add_host(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario host."""
    parser = scenarios.add_parser(
        "host",
        help="CPU time per result of node, engine process and peers, by groups of threads",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--presets", nargs="+", default=["builtin", "null", "counter", "three_nodes"], metavar="PRESET",
        help="see above (default: builtin null counter three_nodes)")  # fmt: skip
    add("--cameras", nargs="+", type=positive, default=[1, 3], metavar="N", help="numbers of cameras (default: 1 3)")
    add("--sizes", nargs="+", type=size, default=[(640, 480), (1280, 720), (1920, 1080)], metavar="WxH",
        help="of the images (default: 640x480 1280x720 1920x1080)")  # fmt: skip
    add("--encodings", nargs="+", choices=("jpeg", *ENCODINGS), default=["rgb8", "jpeg"], metavar="NAME",
        help="jpeg, or that of sensor_msgs/Image (default: rgb8 jpeg)")  # fmt: skip
    add("--rate", type=positive_float, default=10.0, help="of each camera, Hz (default: %(default)g)")
    add("--seconds", type=positive_float, default=15.0, help="length of each run (default: %(default)g)")
    add("--repeats", type=positive, default=1, help="runs of each case; medians are reported (default: %(default)s)")
    add("--device", help="in place of the parameter file's: auto, cpu, cuda, cuda:<number>")
    add("--seed", type=natural, default=0, help="of the images (default: %(default)s)")
    add("--baseline", type=Path, metavar="FILE", help="compare with what another build wrote with --output")
    add("--output", type=Path, help="write the figures to this JSON file")
    add("--plot", type=Path, help="write stacked bars to this PNG file")
    add("--logs", type=Path, help="folder for the processes' logs (default: one that stays if it fails)")
    parser.set_defaults(run=run_host)


def run_host(args: argparse.Namespace) -> int:
    """Measure, print tables, write JSON and picture."""
    if args.plot is not None:
        require("--plot", "matplotlib")
    for option in ("output", "plot"):
        if getattr(args, option) is not None:
            check_writable(f"--{option}", getattr(args, option))
    if not Path("/proc/self/task").is_dir():
        raise CommandError("benchmark host reads the counts of threads under /proc, which this system does not have")
    import multi_dnn_ros.ros  # noqa: F401  (makes rclpy importable)
    from multi_dnn_ros.benchmark.host_cases import matrix
    from multi_dnn_ros.benchmark.host_cost import measure_host
    from multi_dnn_ros.benchmark.host_report import compare, host_table, plot_host, read_baseline
    from multi_dnn_ros.cli.log_folder import log_folder
    from multi_dnn_ros.common.reporting import provenance, write_json

    baseline = read_baseline(args.baseline) if args.baseline is not None else None
    cases = matrix(args.presets, args.cameras, args.sizes, args.encodings, args.rate, args.repeats)
    with log_folder(args.logs) as folder:
        figures = measure_host(cases, folder, args.seconds, args.device, args.seed, print)
    if baseline is not None:
        figures["baseline"] = compare(figures, baseline)
    print(host_table(figures))
    if args.plot is not None:
        plot_host(figures, args.plot)
        print(f"plotted in {args.plot}")
    if args.output is not None:
        write_json(args.output, {"scenario": "host", **provenance(), **figures})
        print(f"written to {args.output}")
    return 0
