"""``multi-dnn benchmark load``, ``camera-faults``, ``isolation`` and ``cycles``: the node, with cameras over ROS."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import at_least_two, camera_name, minutes, positive, positive_float, size
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.log_folder import add_logs, check_passed, log_folder
from multi_dnn_ros.cli.options import (
    add_device,
    add_output,
    add_params_file,
    add_plot,
    add_seed,
    check_files,
    read_config,
    write_figures,
)
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.benchmark.cameras import CameraPlan

_LOAD = """\
Three cameras send images to a node over loopback DDS; one sends more than four times the rate that can be served. The
run passes if latency and memory at its end are about the same as in its second minute (if it is shorter than 5 minutes:
in its second fifth), every frame is accounted for, no camera gets less than 80 % of its share, and the node ends in
time (exit code 1 if not). --camera replaces the three cameras by cameras of your own, each at its rate; their shares
are not checked.
"""
_CAMERA_FAULTS = """\
One of three cameras stalls, sends broken images, is killed and comes back. The run passes if the results of the other
two are not affected and the node reports each fault (exit code 1 if not).
"""
_ISOLATION = """\
Runs the node with parameter `isolation` process (the engine in its own process) and none (everything in one process) in
turn, and compares rate, latency, CPU time and memory.
"""
_CYCLES = """\
Each cycle activates the node, serves one frame per camera and deactivates the node. The run passes if memory, threads
and file descriptors do not grow from the first cycles to the last ones (exit code 1 if they do).
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare load, camera-faults, isolation and cycles."""
    parser = add_command(
        scenarios, "load", "overload the node for minutes and check that latency and memory do not grow",
        details=_LOAD, run=_load,
        examples="multi-dnn benchmark load --minutes 10 --output load.json --plot load.png\n"
        "multi-dnn benchmark load --params-file my_robot.yaml --camera front=1280x720@30:rgb8 "
        "--camera rear=640x480@10:jpeg",
    )  # fmt: skip
    _add_node(parser, "images")
    add = parser.add_argument
    add("--minutes", type=minutes, default=10.0, metavar="MIN",
        help="length of the run in minutes, at least 0.1 (default: %(default)g)")  # fmt: skip
    _add_camera(parser, "a camera in place of the three")
    add_plot(parser, "latency and memory over time")
    add_logs(parser)
    parser = add_command(
        scenarios, "camera-faults", "check that a faulty camera does not affect the others", details=_CAMERA_FAULTS,
        examples="multi-dnn benchmark camera-faults --seconds 15 --output faults.json", run=_camera_faults,
        aliases=("rough",),  # its earlier name
    )  # fmt: skip
    _add_node(parser, "images")
    _add_seconds(parser, "phase", 15.0)
    add_logs(parser)
    parser = add_command(
        scenarios, "isolation", "compare engine processes with everything in one process", details=_ISOLATION,
        examples="multi-dnn benchmark isolation --repeats 5 --output isolation.json", run=_isolation,
    )  # fmt: skip
    _add_node(parser, "images")
    _add_seconds(parser, "run", 30.0)
    parser.add_argument("--repeats", type=positive, default=3, metavar="N",
                        help="runs per value of `isolation` (default: %(default)s)")  # fmt: skip
    _add_camera(parser, "a camera in place of one of 640x480 at 10 Hz")
    add_logs(parser)
    parser = add_command(
        scenarios, "cycles", "activate and deactivate the node repeatedly and check for leaks", details=_CYCLES,
        examples="multi-dnn benchmark cycles --repeats 50 --device cuda", run=_cycles,
    )  # fmt: skip
    _add_node(parser)
    parser.add_argument("--repeats", type=at_least_two, default=50, metavar="N",
                        help="number of cycles, at least 2 (default: %(default)s)")  # fmt: skip


def _add_node(parser: argparse.ArgumentParser, random: str = "") -> None:
    """Options that configure the node, and --output. random: what is generated from --seed; empty: nothing."""
    add_params_file(parser)
    add_device(parser, default=None)
    if random:
        add_seed(parser, f"the generated {random}")
    add_output(parser)


def _add_seconds(parser: argparse.ArgumentParser, what: str, default: float) -> None:
    parser.add_argument("--seconds", type=positive_float, default=default, metavar="S",
                        help=f"length of each {what} in seconds (default: %(default)g)")  # fmt: skip


def _add_camera(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--camera", type=_camera, action="append", default=[], metavar="NAME=WxH@HZ:ENCODING",
        help=f"{text}; ENCODING: jpeg (CompressedImage) or an encoding of sensor_msgs/Image; may be repeated",
    )  # fmt: skip


def _camera(text: str) -> tuple[str, tuple[int, int], float, str]:
    match = re.fullmatch(r"([^=]+)=([^@]+)@([^:]+):(\w+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a camera such as front=1280x720@30:rgb8")
    encoding = match[4]
    if encoding not in ("jpeg", *ENCODINGS):
        raise argparse.ArgumentTypeError(f"'{text}': encoding '{encoding}'; allowed: jpeg, {', '.join(ENCODINGS)}")
    return camera_name(match[1]), size(match[2]), positive_float(match[3]), "" if encoding == "jpeg" else encoding


def _plans(cameras: list[tuple[str, tuple[int, int], float, str]]) -> list[CameraPlan]:
    from multi_dnn_ros.benchmark.cameras import CameraPlan

    if len({name for name, *_ in cameras}) < len(cameras):
        raise UsageError(f"--camera names {', '.join(name for name, *_ in cameras)}: each only once")
    return [CameraPlan(name, pixels, encoding, rate) for name, pixels, rate, encoding in cameras]


def _finish(args: argparse.Namespace, figures: dict[str, Any], table: str) -> int:
    """Print the table and write the figures. Returns the exit code, 1 for a run that did not pass."""
    print(table)
    write_figures(args.output, figures, scenario=args.scenario)
    return 0 if figures.get("passed", True) else 1


def _load(args: argparse.Namespace) -> int:
    check_files(args, "output", "plot")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.load import load_table, measure_load
    from multi_dnn_ros.benchmark.load_plot import plot_load

    with log_folder(args.logs) as folder:
        measured = measure_load(read_config(args), folder, args.minutes * 60.0, args.seed, _plans(args.camera))
        _finish(args, measured.figures, load_table(measured.figures))
        if args.plot is not None:
            plot_load(measured, args.plot)
            print(f"plot written to {args.plot}")
        check_passed(measured.figures, folder)
    return 0


def _camera_faults(args: argparse.Namespace) -> int:
    check_files(args, "output")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.camera_faults import camera_fault_table, measure_camera_faults

    with log_folder(args.logs) as folder:
        figures = measure_camera_faults(read_config(args), folder, args.seconds, args.seed)
        _finish(args, figures, camera_fault_table(figures))
        check_passed(figures, folder)
    return 0


def _isolation(args: argparse.Namespace) -> int:
    check_files(args, "output")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.isolation import isolation_table, measure_isolation

    config, cameras = read_config(args), _plans(args.camera)
    with log_folder(args.logs) as folder:
        figures = measure_isolation(config, folder, args.seconds, args.repeats, cameras, args.seed, print)
    return _finish(args, figures, isolation_table(figures))


def _cycles(args: argparse.Namespace) -> int:
    check_files(args, "output")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.cycles import cycles_table, measure_cycles

    figures = measure_cycles(read_config(args), args.repeats)
    return _finish(args, figures, cycles_table(figures))
