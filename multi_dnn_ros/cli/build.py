"""Fill the caches for a parameter file, so that the node starts in seconds.

Configures the DNNs of a parameter file exactly as the node does, in engine processes and without ROS, and stores all
results that take long to compute in ~/.cache/multi_dnn_ros (docs/devices.md lists the folders). Afterwards it
configures again, from the caches, to show how long the node will take.

Run it on the robot, because the results depend on the machine and on the versions of its libraries. Entries from
another machine or version are never used and can be deleted.

CONFIG is a parameter file as for `multi-dnn run`. Exit code 1: a DNN cannot be configured; the message says why.

examples:
  multi-dnn build my_robot.yaml
  multi-dnn build my_robot.yaml --node /robot1/multi_dnn --output build.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli import options
from multi_dnn_ros.cli.figures import write_figures
from multi_dnn_ros.common.errors import CommandError

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig


def add_parser(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = options.add_command(commands, "build", __doc__, run)
    parser.add_argument("params_file", type=Path, nargs="?", metavar="CONFIG",
                        help="parameter file of the node (default: the package's config/multi_dnn.yaml)")  # fmt: skip
    options.add_options(parser, "--node", "--output")
    options.add_options(parser, "--device", **options.CONFIGURED_DEVICE)


def run(args: argparse.Namespace) -> int:
    """Fill the caches, and print progress and the summary."""
    config = options.read_config(args).model_copy(update={"isolation": "process"})

    from multi_dnn_ros.common.resources import cache_folder
    from multi_dnn_ros.serving.descriptions import ConfigureError

    try:
        first_s = _configure(config, lambda line: print(line, flush=True))
        print("configuring again, from the caches", flush=True)
        again_s = _configure(config, lambda line: None)
    except ConfigureError as error:
        raise CommandError(str(error)) from None
    print(f"configured in {first_s:.1f} s, and from the caches in {cache_folder()} in {again_s:.1f} s")
    write_figures(args.output, {"first_s": first_s, "again_s": again_s, "dnns": list(config.dnns)})
    return 0


def _configure(config: NodeConfig, report: Callable[[str], None]) -> float:
    """Configure in new processes and end them. Returns the seconds until the DNNs were ready. Raises ConfigureError."""
    from multi_dnn_ros.serving.host import Host

    begin = time.monotonic()
    host = Host()
    try:
        host.configure(config, lambda step: report(f"{time.monotonic() - begin:7.1f} s  {step}"))
        return time.monotonic() - begin
    finally:
        host.close()
