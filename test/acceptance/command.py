"""Runs the command ``multi-dnn`` as a user does: the installed script, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The console script of the environment whose interpreter runs the tests; in a ROS 2 workspace it is on PATH.
SCRIPT = shutil.which("multi-dnn", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def multi_dnn(
    *arguments: str | Path,
    environment: Mapping[str, str | None] | None = None,
    prefix: Sequence[str | Path] = (),
    folder: Path | None = None,
    timeout_s: float = 240.0,
) -> subprocess.CompletedProcess[str]:
    """Run ``multi-dnn ARGUMENTS`` to its end. Nothing is asserted; stdout and stderr are text.

    environment: variables that differ from those of the tests; None removes one. prefix: a command that runs the
    script, such as ``unshare``. folder: current folder.
    """
    assert SCRIPT is not None, "multi-dnn is not installed beside this interpreter, nor on PATH"
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(
        [*map(str, prefix), sys.executable, SCRIPT, *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        cwd=folder, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
    )  # fmt: skip


def assert_one_error(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """The command has failed with one line on stderr that holds the words, without a traceback."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]
