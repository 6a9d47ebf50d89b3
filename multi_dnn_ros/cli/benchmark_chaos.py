"""``multi-dnn benchmark chaos``: faults of engine processes under load."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import natural, positive_float, size
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.common.errors import UsageError

_DESCRIPTION = """\
Cameras with generated images in front of the engine processes, without ROS. Every few seconds one of the processes is
killed (SIGKILL), crashes (SIGSEGV), is stopped (SIGSTOP), exits while it configures, or gets no memory for two seconds.
Passed: every frame that was offered was published or counted as dropped, once; when the faults have ended all DNNs
serve as before; memory, threads, descriptors and /dev/shm are what they were, and no process is left.
"""


def add_chaos(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario chaos."""
    parser = scenarios.add_parser(
        "chaos",
        help="engine processes that are killed again and again under load: does every frame end once?",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--params-file", type=Path, help="DNNs and cameras, as for `multi-dnn run`")
    parser.add_argument("--device", help="in place of the parameter file's: auto, cpu, cuda, cuda:<number>")
    parser.add_argument(
        "--standby", choices=("none", "warm", "hot"), default="hot", help="parameter standby (default: %(default)s)"
    )
    parser.add_argument("--minutes", type=positive_float, default=10.0, help="length of the run (default: %(default)g)")
    parser.add_argument(
        "--every", type=positive_float, nargs=2, default=(5.0, 20.0), metavar=("MIN", "MAX"),
        help="seconds between two faults (default: 5 20)",
    )  # fmt: skip
    parser.add_argument("--rate", type=positive_float, default=30.0, help="of each camera, Hz (default: %(default)g)")
    parser.add_argument("--size", type=size, default=(320, 240), help="of the images (default: 320x240)")
    parser.add_argument(
        "--fault-window", type=positive_float, default=10.0,
        help="parameter fault_window_s (default: %(default)g, so that single faults do not all look like one DNN's)",
    )  # fmt: skip
    parser.add_argument("--seed", type=natural, default=0, help="of faults and images (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    parser.set_defaults(run=run_chaos)


def run_chaos(args: argparse.Namespace) -> int:
    """Run it, print a table, write JSON. 1 when it failed."""
    from multi_dnn_ros.benchmark.chaos import ChaosPlan, chaos_table, measure_chaos
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.settings.params_file import read_params_file
    from multi_dnn_ros.settings.schema import NodeConfig

    shortest, longest = args.every
    if shortest > longest:
        raise UsageError(f"--every {shortest:g} {longest:g}: the first must not be larger")
    if args.output is not None:
        check_writable("--output", args.output)
    config = read_params_file(args.params_file or config_file("multi_dnn.yaml"))
    changed = {"standby": args.standby, "fault_window_s": args.fault_window}
    if args.device is not None:
        changed["device"] = args.device
    config = NodeConfig.model_validate({**config.model_dump(), **changed})
    plan = ChaosPlan(60.0 * args.minutes, (shortest, longest), args.rate, args.size, args.seed)
    figures = measure_chaos(config, plan)
    print(chaos_table(figures))
    if args.output is not None:
        write_json(args.output, {"scenario": "chaos", **provenance(), **figures})
        print(f"written to {args.output}")
    return 0 if figures["passed"] else 1
