"""Where the processes of a benchmark write their logs."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import CommandError


def add_logs(parser: argparse.ArgumentParser) -> None:
    """--logs."""
    parser.add_argument(
        "--logs", type=Path, metavar="DIR",
        help="folder for the logs of the processes (default: a temporary folder, kept if the run fails)",
    )  # fmt: skip


def check_passed(figures: Mapping[str, Any], folder: Path) -> None:
    """Raise CommandError if the run has not passed. Call it inside :func:`log_folder`, which then keeps the logs."""
    if not figures["passed"]:
        raise CommandError(f"the run has not passed; the logs of its processes are in {folder}")


@contextmanager
def log_folder(path: Path | None) -> Iterator[Path]:
    """`path`, or a temporary folder. The latter is kept after a CommandError, whose message names a log in it."""
    if path is not None:
        yield path
        return
    folder = tempfile.mkdtemp(prefix="multi_dnn_benchmark_")
    kept = False
    try:
        yield Path(folder)
    except CommandError:
        kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
