"""What `make install` says about a machine on which it cannot succeed, before it installs anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Answers as Python does to what tools/check_machine.sh asks, and notes how it was called.
PYTHON = """#!/bin/sh
echo "$@" >> "{calls}"
case "$2" in
    *version_info*) echo {version} ;;
    *ensurepip*) {ensurepip} ;;
    *rclpy*) {ros} ;;
    *Python.h*) {headers} ;;
esac
"""
#: POSIX: 1024-byte blocks, the fourth column of the second line is what is free.
DF = """#!/bin/sh
echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
echo "/dev/disk 100000000 1 {free} 1% /"
"""
ALLOWED = "allowed: 3.10 to 3.14, for example: make PYTHON=python3.12"


def make(folder: Path, *targets: str, version: str = "3.12", free_mb: int = 8_000, **parts: bool) -> tuple[str, str]:
    """What make says on a machine with this Python and its parts, a sourced ROS 2 if asked for, and so much free disk;
    and how Python was called. make's own line about the recipe that failed is left out.
    """
    calls = folder / "calls"
    calls.touch()
    has = {"ensurepip": True, "headers": True, "ros": False, **parts}
    answers = {name: "true" if there else "exit 1" for name, there in has.items()}
    python = PYTHON.format(calls=calls, version=version, **answers)
    for name, text in (("python", python), ("df", DF.format(free=free_mb * 1000))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    # Not as a part of the make that runs the tests.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", "--silent", *targets, f"VENV={folder / 'venv'}"]
    done = subprocess.run(
        [*command, f"PYTHON={folder / 'python'}"], cwd=ROOT, env={**own, "PATH": f"{folder}:{own['PATH']}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make: ***")]
    return "\n".join(said), calls.read_text()


@pytest.mark.parametrize("has", [{"version": "3.10"}, {"version": "3.14"}, {"headers": False, "ros": True}])
def test_a_machine_that_has_everything_installs(tmp_path: Path, has: dict[str, Any]) -> None:
    assert "-m venv" in make(tmp_path, "install", **has)[1]


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"version": "3.15"}, f"is Python 3.15; {ALLOWED}"),
        ({"version": "3.9"}, f"is Python 3.9; {ALLOWED}"),
        ({"ensurepip": False}, "on Debian and Ubuntu: sudo apt install python3.12-venv"),
        ({"headers": False}, "on Debian and Ubuntu: sudo apt install gcc g++ python3.12-dev"),
        ({"free_mb": 1_999}, "only 1999 MB are free on this disk; what will be installed takes 2 GB"),
    ],
    ids=str,
)
def test_what_is_missing_is_said_in_one_sentence(tmp_path: Path, lacks: dict[str, Any], says: str) -> None:
    said, calls = make(tmp_path, "demo", **lacks)
    assert says in said
    assert "\n" not in said
    assert "-m venv" not in calls


@pytest.mark.parametrize(("target", "extra"), [("demo", "demo"), ("test", "test")])
@pytest.mark.parametrize("ros", [True, False])
def test_each_target_installs_the_extra_that_it_needs(tmp_path: Path, target: str, extra: str, ros: bool) -> None:
    """ROS 2 as well, unless one is sourced."""
    said, _ = make(tmp_path, "--dry-run", target, ros=ros)
    assert f'--constraint constraints.txt --editable ".[{extra if ros else extra + ",ros"}]"' in said
    assert ("tools/ros_environment.py" in said) is not ros
