"""``multi-dnn build``: fill the caches for a parameter file in advance, so that the node starts quickly."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_device, add_output, check_files, check_node, read_config, write_figures
from multi_dnn_ros.common.errors import CommandError

if TYPE_CHECKING:
    from multi_dnn_ros.cli.cache_build import Built

_DETAILS = """\
Configures the DNNs of a parameter file exactly as the node does, in engine processes and without ROS, and stores all
results that take long to compute in ~/.cache/multi_dnn_ros (docs/providers.md lists the folders). For DNNs with backend
auto it also measures which backend is the fastest; the node then uses that one. Afterwards it configures again, from
the caches, to show how long the node will take.

Run it on the robot, because the results depend on the machine and on the versions of its libraries. Entries from
another machine or version are never used; the summary names them, and they can be deleted. Stop other programs while
backends are measured.

CONFIG is a parameter file as for `multi-dnn run`. Exit code 1: a DNN cannot be configured; the message says why.
"""
_EXAMPLES = """\
multi-dnn build
multi-dnn build my_robot.yaml
multi-dnn build my_robot.yaml --node /robot1/multi_dnn --output build.json
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "build", "fill the caches for a parameter file, so that the node starts in seconds",
        details=_DETAILS, examples=_EXAMPLES, run=run,
    )  # fmt: skip
    add = parser.add_argument
    add("params_file", type=Path, nargs="?", metavar="CONFIG",
        help="parameter file of the node (default: the package's config/multi_dnn.yaml)")  # fmt: skip
    add("--node", metavar="NAME", help="full name of the node whose section of the file is used "
        "(default: /multi_dnn)")  # fmt: skip
    add_device(parser, None)
    add_output(parser, "write the summary to this JSON file")


def run(args: argparse.Namespace) -> int:
    """Fill the caches, and print progress and the summary."""
    check_files(args, "output")
    if args.node is not None:
        check_node(args.node)
    config = read_config(args, args.node)
    from multi_dnn_ros.cli.cache_build import build_caches, seconds
    from multi_dnn_ros.serving.host import ConfigureError
    from multi_dnn_ros.serving.process_host import ProcessHost

    config = config.model_copy(update={"isolation": "process"})
    try:
        built = build_caches(config, ProcessHost, lambda line: print(line, flush=True), seconds)
    except ConfigureError as error:
        raise CommandError(str(error)) from None
    print(summary(built))
    caches = [
        {"what": made.kind.what, "where": str(made.kind.path), "files": made.files, "bytes": made.size_bytes,
         "total_bytes": made.total_bytes}
        for made in built.caches
    ]  # fmt: skip
    by_dnn = {name: {"first_s": first, "again_s": again} for name, (first, again) in built.by_dnn_s.items()}
    figures = {"first_s": built.first_s, "again_s": built.again_s, "dnns": by_dnn, "caches": caches}
    write_figures(args.output, figures)
    return 0


def summary(built: Built) -> str:
    """Tables of the caches and of the times, and the entries that are not used."""
    from multi_dnn_ros.common.reporting import table

    caches = table(
        ["cache", "where", "files made", "KiB made", "KiB in total"],
        [
            [made.kind.what, str(made.kind.path), str(made.files), f"{made.size_bytes / 1024:.0f}",
             f"{made.total_bytes / 1024:.0f}"]
            for made in built.caches
            if made.total_bytes
        ],
    )  # fmt: skip
    times = table(
        ["seconds to configure", "first", "from the caches"],
        [
            *([name, f"{first:.1f}", f"{again:.1f}"] for name, (first, again) in built.by_dnn_s.items()),
            ["in total, including the start of the processes", f"{built.first_s:.1f}", f"{built.again_s:.1f}"],
        ],
    )
    return f"\n{caches}\n\n{times}"
