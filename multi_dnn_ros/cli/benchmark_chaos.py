"""``multi-dnn benchmark chaos``: faults of engine processes under load."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli.arguments import positive_float, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import (
    add_device,
    add_output,
    add_params_file,
    add_seed,
    check_files,
    read_config,
    write_figures,
)
from multi_dnn_ros.common.errors import UsageError

_DETAILS = """\
Generated images go to the engine processes without ROS. Every few seconds one of the processes is killed (SIGKILL),
crashes (SIGSEGV), is stopped (SIGSTOP), exits while it is being configured, or gets no memory for two seconds.

The run passes (exit code 0) if every frame was published or counted as dropped exactly once, all DNNs serve at their
former rate after the last fault, memory, threads, file descriptors and /dev/shm have not grown, and no process is left.
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare chaos."""
    parser = add_command(
        scenarios, "chaos", "kill engine processes under load and check that every frame is accounted for",
        details=_DETAILS, examples="multi-dnn benchmark chaos --minutes 10 --standby hot --output chaos.json", run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add_params_file(parser)
    add_device(parser, default=None)
    add("--standby", choices=("none", "warm", "hot"), default="hot",
        help="value of the node's parameter `standby` (default: %(default)s)")  # fmt: skip
    add("--minutes", type=positive_float, default=10.0, metavar="MIN",
        help="length of the run in minutes (default: %(default)g)")  # fmt: skip
    add("--every", type=positive_float, nargs=2, default=(5.0, 20.0), metavar=("MIN", "MAX"),
        help="shortest and longest time between two faults in seconds (default: 5 20)")  # fmt: skip
    add("--rate", type=positive_float, default=30.0, metavar="HZ", help="images per second and camera (default: 30)")
    add("--size", type=size, default=(320, 240), metavar="WxH", help="size of the images in pixels (default: 320x240)")
    add("--fault-window", type=positive_float, default=10.0, metavar="S",
        help="value of the node's parameter fault_window_s in seconds; a small value, so that separate faults are not "
        "attributed to one DNN (default: %(default)g)")  # fmt: skip
    add_seed(parser, "the faults and images")
    add_output(parser)


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.benchmark.chaos import ChaosPlan, chaos_table, measure_chaos

    shortest, longest = args.every
    if shortest > longest:
        raise UsageError(f"--every is {shortest:g} {longest:g}; the first number must not exceed the second")
    check_files(args, "output")
    config = read_config(args, standby=args.standby, fault_window_s=args.fault_window)
    plan = ChaosPlan(60.0 * args.minutes, (shortest, longest), args.rate, args.size, args.seed)
    figures = measure_chaos(config, plan)
    print(chaos_table(figures))
    write_figures(args.output, figures, scenario="chaos")
    return 0 if figures["passed"] else 1
