"""``multi-dnn benchmark``: what it costs, each figure beside its baseline from the same run."""

from __future__ import annotations

import argparse
from pathlib import Path

_DESCRIPTION = """\
Measure this machine. Every scenario runs its baselines in the same process run, in random order, and prints a table;
--output writes the figures with machine, versions, sample counts and command as JSON.

scenarios:
  cpu        the configured DNNs through the engine, one after another in one thread, and as one process each
  overhead   the engine's own cost per job, with jobs that compute nothing
"""
_EXAMPLES = """\
examples:
  multi-dnn benchmark cpu --output results/benchmark_cpu.json
  multi-dnn benchmark cpu --params-file my_robot.yaml --frames 50
  multi-dnn benchmark overhead
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "benchmark",
        help="measure this machine against baselines from the same run",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", choices=("cpu", "overhead"))
    parser.add_argument(
        "--params-file", type=Path, help="DNNs to measure, as for `multi-dnn run` (default: the package's)"
    )
    parser.add_argument("--frames", type=int, default=20, help="frames in each repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats of each condition (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the generated images and the order (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print a table, write JSON."""
    from multi_dnn_ros.benchmark.report import provenance, write_json
    from multi_dnn_ros.cli.errors import UsageError

    for name in ("frames", "repeats"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}; it must be at least 1")
    figures, text = _cpu(args) if args.scenario == "cpu" else _overhead(args)
    print(text)
    if args.output is not None:
        write_json(args.output, {"scenario": args.scenario, **provenance(), **figures})
        print(f"written to {args.output}")
    return 0


def _cpu(args: argparse.Namespace) -> tuple[dict, str]:
    from multi_dnn_ros.benchmark.concurrency import ENGINE, measure_concurrency
    from multi_dnn_ros.benchmark.report import table
    from multi_dnn_ros.params_file import read_params_file
    from multi_dnn_ros.resources import config_file

    config = read_params_file(args.params_file or config_file("multi_dnn.yaml"))
    figures = measure_concurrency(config, args.frames, args.repeats, args.seed)
    engine = figures["ms_per_frame"][ENGINE]["p50"]
    rows = [
        [name, f"{times['p50']:.1f}", f"{times['min']:.1f}", f"{times['max']:.1f}", f"{engine / times['p50']:.2f}"]
        for name, times in figures["ms_per_frame"].items()
    ]
    header = ["condition", "ms a frame (median)", "min", "max", "engine / this"]
    return figures, table(header, rows)


def _overhead(args: argparse.Namespace) -> tuple[dict, str]:
    from multi_dnn_ros.benchmark.overhead import measure_overhead
    from multi_dnn_ros.benchmark.report import table

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
    return {"cases": cases}, table(["jobs a frame", "engine, us a job", "called directly", "the engine's own"], rows)
