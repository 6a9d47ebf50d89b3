"""``multi-dnn benchmark cpu`` and ``overhead``: the engine without ROS."""

from __future__ import annotations

import argparse
from typing import Any

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_output, add_params_file, add_seed, check_files, read_config, write_figures
from multi_dnn_ros.common.errors import CommandError, UsageError

_CPU = """\
Time per frame, all DNNs included, on the CPU: by the engine, in one thread that runs the DNNs one after another, with
one process per DNN, and with one process per DNN that calls ONNX Runtime directly. --alone also
measures single networks on one core.
"""
_CPU_EXAMPLES = """\
multi-dnn benchmark cpu --params-file my_robot.yaml --frames 50
multi-dnn benchmark cpu --alone builtin:object --alone torchvision:resnet50 --output cpu.json
"""
_OVERHEAD = """\
Jobs that compute nothing run through the engine and, as the baseline, are called directly in a loop. The difference is
the cost of queue, threads and statistics.
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare cpu and overhead."""
    parser = add_command(
        scenarios, "cpu", "compare the engine with one thread and with one process per DNN, on the CPU", details=_CPU,
        examples=_CPU_EXAMPLES, run=_cpu,
    )  # fmt: skip
    add_params_file(parser)
    add_seed(parser, "the generated images and of the order of runs")
    _add_frames(parser)
    add = parser.add_argument
    baselines = ("sequential", "processes", "plain")
    add("--against", nargs="+", choices=baselines, metavar="BASELINE", default=baselines,
        help="sequential: one thread; processes: one process per DNN; plain: one process per DNN that calls ONNX "
        "Runtime directly (default: all three)")  # fmt: skip
    add("--alone", action="append", default=[], metavar="MODEL",
        help="also compare this network on one core with ONNX Runtime, which runs it as a whole; "
        "may be repeated")  # fmt: skip
    add("--jobs", type=positive, default=4, metavar="N",
        help="jobs that a network of --alone is cut into, at least 2 (default: %(default)s)")  # fmt: skip
    add("--rounds", type=positive, default=200, metavar="N", help="timed runs of --alone (default: %(default)s)")
    add_output(parser)
    parser = add_command(
        scenarios, "overhead", "measure the engine's own time per job", details=_OVERHEAD,
        examples="multi-dnn benchmark overhead --output overhead.json", run=_overhead,
    )  # fmt: skip
    _add_frames(parser)
    add_output(parser)


def _add_frames(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--frames", type=positive, default=20, metavar="N", help="frames per repeat (default: %(default)s)")
    add("--repeats", type=positive, default=9, metavar="N", help="repeats per condition (default: %(default)s)")


def _cpu(args: argparse.Namespace) -> int:
    check_files(args, "output")
    from multi_dnn_ros.benchmark.concurrency import ENGINE, measure_concurrency, on_cpu
    from multi_dnn_ros.common.reporting import table

    config = on_cpu(read_config(args))  # first, so that its errors do not come after the minutes of --alone
    alone = _alone(args) if args.alone else {}
    if alone:  # what follows takes minutes
        write_figures(args.output, alone, scenario="cpu")
    figures = measure_concurrency(config, args.frames, args.repeats, args.seed, args.against)
    engine = figures["ms_per_frame"][ENGINE]["p50"]
    rows = [
        [name, f"{times['p50']:.1f}", f"{times['min']:.1f}", f"{times['max']:.1f}", f"{engine / times['p50']:.2f}"]
        for name, times in figures["ms_per_frame"].items()
    ]
    print(table(["condition", "ms per frame (median)", "min", "max", "engine / this"], rows))
    write_figures(args.output, {**figures, **alone}, scenario="cpu")
    return 0


def _alone(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the networks of --alone, print their table and return their figures."""
    from multi_dnn_ros.benchmark.networks_alone import DIRECT, JOBS, TORCHSCRIPT, WHOLE, measure_alone
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.models.errors import ModelError

    if args.jobs < 2:
        raise UsageError(f"--jobs is {args.jobs}; with --alone at least 2, because one job is the whole network")
    try:
        networks = measure_alone(args.alone, args.jobs, args.rounds, args.seed)
    except (ModelError, ValueError) as error:
        raise CommandError(f"--alone: {error}") from None
    rows = [
        [
            each["model"],
            f"{each['cpu_ms'][DIRECT]['p50']:.2f} ({each['cpu_ms'][DIRECT]['min']:.2f})",
            *(
                f"{each['over_direct'][name]['medians']:.3f} ({each['over_direct'][name]['minima']:.3f})"
                for name in (WHOLE, JOBS, TORCHSCRIPT)
            ),
        ]
        for each in networks
    ]
    ratios = [f"{name} / directly" for name in (WHOLE, JOBS, TORCHSCRIPT)]
    header = ["network, one thread", f"{DIRECT}, CPU ms: median (min)", *ratios]
    print(table(header, rows), end="\n\n")
    return {"alone": networks}


def _overhead(args: argparse.Namespace) -> int:
    check_files(args, "output")
    from multi_dnn_ros.benchmark.overhead import measure_overhead
    from multi_dnn_ros.common.reporting import table

    cases = [measure_overhead(jobs, args.frames * 10, args.repeats, dnns=3, workers=2) for jobs in (1, 4, 8, 32)]
    rows = [
        [
            str(case["jobs"]),
            f"{case['engine_us_per_job']['p50']:.1f}",
            f"{case['direct_us_per_job']['p50']:.1f}",
            f"{case['overhead_us_per_job']:.1f}",
        ]
        for case in cases
    ]
    print(table(["jobs per frame", "engine, us per job", "direct calls, us per job", "difference, us per job"], rows))
    write_figures(args.output, {"cases": cases}, scenario="overhead")
    return 0
