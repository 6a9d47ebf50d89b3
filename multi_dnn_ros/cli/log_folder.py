"""Where a benchmark's processes write their logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multi_dnn_ros.common.errors import CommandError


@contextmanager
def log_folder(path: Path | None) -> Iterator[Path]:
    """`path`, or a temporary folder, which stays where a CommandError names a log in it."""
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
