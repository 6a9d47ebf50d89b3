"""``multi-dnn benchmark deadlines`` and ``important``: scheduling policies, and one DNN that matters most."""

from __future__ import annotations

import argparse
from functools import partial

from multi_dnn_ros.cli.arguments import positive, positive_float
from multi_dnn_ros.cli.benchmark_sets import (
    add_condition,
    add_execution,
    add_output,
    check_output,
    chosen_device,
    chosen_networks,
    chosen_set,
    print_progress,
)
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import save_figures

_DEADLINES = """\
Three cameras send frames to DNNs of high, medium and low priority, whose deadlines are one, two and three frame
periods. The command first measures how much the engine can serve; then the cameras send 50, 90 and 120 % of that. The
report gives missed deadlines and drops under each policy of the job queue. The number of DNNs is chosen so that the
cameras run at about --rate. Exit code 1 if a frame is unaccounted for.
"""
_IMPORTANT = """\
One important DNN serves a camera at --rate while the others always have a frame waiting. The report gives its latency,
relative to its latency while the others are idle, and their throughput, relative to that under policy fifo. On a GPU
--bounds adds runs with the node's parameter max_launched.
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare deadlines and important."""
    parser = add_command(
        scenarios, "deadlines", "count missed deadlines and drops by scheduling policy, near and beyond capacity",
        details=_DEADLINES, examples="multi-dnn benchmark deadlines --set small --output deadlines.json",
        run=_deadlines,
    )  # fmt: skip
    add = parser.add_argument
    add("--set", default="small", metavar="SET", help="networks, used in turn, as in scenario paper (default: small)")
    add_condition(parser)
    add("--rate", type=positive_float, default=30.0, metavar="HZ",
        help="approximate frame rate of a camera in Hz (default: 30)")  # fmt: skip
    add("--max-dnns", type=positive, default=24, metavar="N", help="maximum number of DNNs (default: %(default)s)")
    add_execution(parser, repeats=3, repeat="runs per case", seconds=5.0)
    add_output(parser, "a plot (.png) beside it")
    parser = add_command(
        scenarios, "important", "measure the latency of one important DNN while others are never idle",
        details=_IMPORTANT, run=_important,
        examples="multi-dnn benchmark important --set small --others 6 --output important.json",
    )  # fmt: skip
    add = parser.add_argument
    add("--set", default="small", metavar="SET", help="networks, as in scenario paper (default: small)")
    add("--important", nargs="+", metavar="NETWORK",
        help="networks of the set to use as the important DNN, in turn (default: each)")  # fmt: skip
    add("--background", nargs="+", metavar="NETWORK",
        help="networks of the set to use for the other DNNs (default: each)")  # fmt: skip
    add("--others", type=positive, default=6, metavar="N", help="number of other DNNs (default: %(default)s)")
    add_condition(parser)
    add("--rate", type=positive_float, default=30.0, metavar="HZ", help="frame rate of the camera in Hz (default: 30)")
    add("--bounds", nargs="+", type=positive, default=[], metavar="N",
        help="on a GPU: also run with at most N launched, unfinished jobs of the others (default: none)")  # fmt: skip
    add_execution(parser, repeats=3, repeat="runs per case", seconds=5.0)
    add_output(parser)


def _deadlines(args: argparse.Namespace) -> int:
    check_output(args.output)
    from multi_dnn_ros.benchmark.paper.conditions import choose_conditions
    from multi_dnn_ros.benchmark.paper.deadlines import DeadlinePlan, deadlines_table, measure_deadlines
    from multi_dnn_ros.benchmark.paper.plot import plot_deadlines
    from multi_dnn_ros.common.thread_switching import short_switch_interval

    device = chosen_device(args)
    (condition,) = choose_conditions([args.condition], device)
    plan = DeadlinePlan(
        dnns=chosen_set(args.set),
        device=device,
        sms=args.sms,
        condition=condition,
        jobs=args.jobs,
        rate_hz=args.rate,
        max_dnns=args.max_dnns,
        repeats=args.repeats,
        seconds=args.seconds,
        seed=args.seed,
    )
    print(f"about {(60 + 9 * plan.repeats * (plan.seconds + 1)) / 60:.0f} min on {device}", flush=True)
    with short_switch_interval():  # as when serving
        figures = measure_deadlines(plan, print_progress(), partial(save_figures, args.output, scenario="deadlines"))
    print(deadlines_table(figures))
    if args.output is not None:
        print(f"written to {args.output}")
        plot = args.output.with_suffix(".png")
        plot_deadlines(figures, plot)
        print(f"plot written to {plot}")
    return 0 if figures["passed"] else 1


def _important(args: argparse.Namespace) -> int:
    check_output(args.output)
    from multi_dnn_ros.benchmark.paper.conditions import choose_conditions
    from multi_dnn_ros.benchmark.paper.important import ImportantPlan, important_table, measure_important

    device = chosen_device(args)
    (condition,) = choose_conditions([args.condition], device)
    dnns = chosen_set(args.set)
    plan = ImportantPlan(
        important=chosen_networks("--important", args.important, dnns),
        background=chosen_networks("--background", args.background, dnns),
        device=device,
        sms=args.sms,
        condition=condition,
        jobs=args.jobs,
        others=args.others,
        rate_hz=args.rate,
        repeats=args.repeats,
        seconds=args.seconds,
        seed=args.seed,
        bounds=tuple(args.bounds),
    )
    figures = measure_important(plan, print_progress(), partial(save_figures, args.output, scenario="important"))
    print(important_table(figures))
    if args.output is not None:
        print(f"written to {args.output}")
    return 0
