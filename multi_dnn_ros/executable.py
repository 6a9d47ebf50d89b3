"""The executable ``multi_dnn_node``."""

from __future__ import annotations

import sys

from multi_dnn_ros.cli.run import run_node
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.serving.process_settings import check_process
from multi_dnn_ros.settings.forms import ParameterError


def main(args: list[str] | None = None) -> int:
    """Run the node; the exit code."""
    try:
        check_process()
        return run_node(args)
    except (CommandError, MissingExtra, ParameterError) as error:
        print(f"multi_dnn_node: {error}", file=sys.stderr)
        return 1
