"""Runs a program that the kernel kills when its parent ends, also if the parent is killed itself.

``python -m multi_dnn_ros.common.child_program PARENT (-m MODULE | PROGRAM) ARGUMENT...``; PARENT: process id.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from multi_dnn_ros.common.parent_process import die_with_parent


def child_command(*command: str) -> list[str]:
    """The command line for a child of this process. command: ``-m``, a Python module and its arguments, or a program
    and its arguments.

    The child is killed when the thread that starts it ends: start it in a thread that lasts as long.
    """
    return [sys.executable, "-u", "-m", __name__, str(os.getpid()), *command]


def main(arguments: Sequence[str]) -> None:
    """Run the program of the command line in this process."""
    parent, program, *rest = arguments
    die_with_parent(int(parent))
    if program != "-m":
        os.execvp(program, [program, *rest])
    sys.argv[:] = rest  # run_module replaces the first one by the file of the module
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
