"""``multi-dnn benchmark compare``: two files of results side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import positive_float
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import check_files
from multi_dnn_ros.common.errors import CommandError, UsageError

_DETAILS = """\
FIRST and SECOND are JSON files of `multi-dnn benchmark board` or of `multi-dnn benchmark host`: two boards, or two
versions. Cases with equal conditions are compared; cases that differ in DNNs, cameras, image sizes or ROS runtime are
listed with the reason. The exit code is 0, unless --fail-above is given.
"""
_EXAMPLES = """\
multi-dnn benchmark compare orin.json pc.json --output compare.html
multi-dnn benchmark compare before.json after.json --fail-above 1.1 --figures rate_hz cpu_ms_per_result
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare compare."""
    parser = add_command(
        scenarios, "compare", "compare the results of two boards or two versions", details=_DETAILS,
        examples=_EXAMPLES, run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add("first", type=Path, metavar="FIRST", help="the file that the ratios refer to")
    add("second", type=Path, metavar="SECOND", help="the file whose figures are rated as better or worse")
    add("--output", type=Path, metavar="HTML", help="write the comparison to this HTML file")
    add("--fail-above", type=positive_float, metavar="RATIO",
        help="exit with code 1 if a figure of SECOND is worse by more than this factor, if SECOND has no figures "
        "for a case that has some in FIRST, or if nothing can be compared")  # fmt: skip
    add("--figures", nargs="+", default=[], metavar="NAME",
        help="figures that --fail-above checks (default: all that can be better or worse)")  # fmt: skip


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output")
    from multi_dnn_ros.benchmark.comparison import compare, read_measured
    from multi_dnn_ros.benchmark.comparison_report import comparison_page, comparison_table
    from multi_dnn_ros.benchmark.quantities import QUANTITIES
    from multi_dnn_ros.common.reporting import write_text

    known = [quantity.name for quantity in QUANTITIES if quantity.better]
    for name in args.figures:
        if name not in known:
            raise UsageError(f"--figures {name}: not a figure that can be better or worse; allowed: {', '.join(known)}")
    if args.figures and args.fail_above is None:
        raise UsageError("--figures chooses what --fail-above checks; give --fail-above, too")
    if args.fail_above is not None and args.fail_above < 1.0:
        raise UsageError(f"--fail-above is {args.fail_above:g}; it must be at least 1 (the same)")
    for path in (args.first, args.second):
        if args.output is not None and args.output.resolve() == path.resolve():
            raise UsageError(f"--output is {args.output}, which is one of the files to compare")
    comparison = compare(read_measured(args.first), read_measured(args.second))
    print(comparison_table(comparison))
    if args.output is not None:
        write_text(args.output, comparison_page(comparison))
        print(f"written to {args.output}")
    if args.fail_above is None:
        return 0
    checked = [row for row in comparison.rows if row.quantity.name in (args.figures or known)]
    if not checked:
        raise CommandError("--fail-above: no figure can be compared")
    failing = comparison.failing(args.fail_above, args.figures)
    for row in failing:
        print(f"worse than allowed: {row.case}, {row.quantity.text}: by a factor of {row.worse_by:.2f}")
    for name in comparison.lost:
        print(f"worse than allowed: {name}: the second file has no figures")
    return 1 if failing or comparison.lost else 0
