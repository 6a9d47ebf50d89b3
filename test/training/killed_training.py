"""A training whose process is killed between two checkpoints; a test that waits for the first may be too late."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.training import checkpoint


def command(file: str, module: str, arguments: Sequence[str]) -> list[str]:
    """A command like `python -m module arguments`, killed when it is about to write checkpoint `file` again."""
    program = "import sys; sys.path.insert(0, {!r}); from killed_training import run; run({!r}, {!r}, {!r})"
    folder = str(Path(__file__).parent)
    return [sys.executable, "-c", program.format(folder, file, module, list(arguments))]


def run(file: str, module: str, arguments: list[str]) -> None:
    """The program that the command runs."""
    save = checkpoint.save

    def save_once(path: Path, state: dict[str, Any], identity: Mapping[str, Any]) -> None:
        if path.name == file and path.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        save(path, state, identity)

    checkpoint.save = save_once
    sys.exit(importlib.import_module(module).main(arguments))
