"""``multi-dnn benchmark soak``: the node with everything on, for an hour."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli.arguments import not_negative, positive_float, soak_minutes
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

_DETAILS = """\
Three cameras (raw, JPEG, and one that is killed and started again) send images to a node over loopback DDS. During the
run the overlay is subscribed to at times, parameters are changed, DNNs are switched off and on, a model is swapped, the
engine process is killed, and the results are recorded.

The run passes (exit code 0) if every frame is accounted for, memory, threads, file descriptors, latency and number of
results at the end are about the same as after ten minutes, every action was carried out, all DNNs served again after
every fault, and nothing is left behind (docs/benchmarks.md).
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare soak."""
    parser = add_command(
        scenarios, "soak", "run the node for an hour with swaps, kills and changes, and check that nothing grows",
        details=_DETAILS,
        examples="multi-dnn benchmark soak --minutes 60 --output soak.json --plot soak.png\n"
        "multi-dnn benchmark soak --minutes 12 --kill-every 0 --params-file my_robot.yaml", run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add_params_file(parser)
    add_device(parser, default=None)
    add("--minutes", type=soak_minutes, default=60.0, metavar="MIN",
        help="length of the run in minutes, at least 0.25 (default: %(default)g)")  # fmt: skip
    add("--kill-every", type=not_negative, default=300.0, metavar="S",
        help="time between two kills of the engine process in seconds, adjusted so that each compared window contains "
        "a whole number of these periods; at least 5. 0: neither kills nor model swaps, so that one process serves for "
        "the whole run (default: %(default)g)")  # fmt: skip
    add("--rate", type=positive_float, default=4.0, metavar="HZ",
        help="images per second and camera (default: %(default)g)")  # fmt: skip
    add_seed(parser, "the order of the events, their values and the images")
    add_output(parser)
    add_plot(parser, "latency, results, memory, files and threads over time")
    add_logs(parser)


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output", "plot")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.soak.plan import MIN_ROUND_S, SoakPlan
    from multi_dnn_ros.benchmark.soak.report import soak_table
    from multi_dnn_ros.benchmark.soak.run import measure_soak

    if 0.0 < args.kill_every < MIN_ROUND_S:
        raise UsageError(f"--kill-every is {args.kill_every:g}; allowed: 0, or at least {MIN_ROUND_S:g} seconds")
    config = read_config(args)
    if config.isolation != "process":
        raise UsageError(f"parameter isolation is {config.isolation}; this scenario needs process")
    plan = SoakPlan(60.0 * args.minutes, args.kill_every, args.rate, args.seed)
    with log_folder(args.logs) as folder:
        run = measure_soak(config, folder, plan, lambda text: print(text, flush=True))
        print(soak_table(run.figures))
        write_figures(args.output, run.figures, scenario="soak")
        if args.plot is not None:
            from multi_dnn_ros.benchmark.soak.plot import plot_soak

            plot_soak(run, args.plot)
            print(f"plot written to {args.plot}")
        check_passed(run.figures, folder)
    return 0
