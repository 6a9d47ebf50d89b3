"""The executable ``multi_dnn_node``."""

from __future__ import annotations

import sys

from multi_dnn_ros.common.environment import check_process
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.exit_on_signals import exit_on_signals
from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.common.garbage_collection import gc_paused
from multi_dnn_ros.settings.params_sections import ParamsFileError


def main(args: list[str] | None = None) -> int:
    """Run the node; the exit code. SIGINT and SIGTERM end it with 0 from the first moment on.

    Importing rclpy takes up to a second, of which an interrupt would make a traceback; there is nothing to tidy up yet.
    When there is a node, its process handles both signals.
    """
    with exit_on_signals():
        try:
            check_process()
            with gc_paused():
                from multi_dnn_ros.ros.process import run

            return run(args)
        except (CommandError, MissingExtra, ParamsFileError) as error:
            print(f"multi_dnn_node: {error}", file=sys.stderr)
            return 1
