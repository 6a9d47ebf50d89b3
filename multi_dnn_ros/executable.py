"""The executable ``multi_dnn_node``."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main(args: list[str] | None = None) -> int:
    """Run the node; the exit code. SIGINT and SIGTERM end it with 0 from the first moment on.

    Importing PyTorch takes seconds, of which an interrupt would make a traceback; there is nothing to tidy up yet. When
    there is a node, its process handles both signals.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from multi_dnn_ros.ros.process import run
    from multi_dnn_ros.settings.params_sections import ParamsFileError

    try:
        return run(args)
    except ParamsFileError as error:
        print(f"multi_dnn_node: {error}", file=sys.stderr)
        return 1


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)
