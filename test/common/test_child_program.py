"""Children end with the process that started them, also if that is killed; a closed terminal is an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from waiting import runs, until

from multi_dnn_ros.common.child_program import child_command

SLEEPER = """\
import os, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(f"{os.getpid()} {__name__} {Path(sys.argv[0]).name} {sys.argv[1:]}")
time.sleep(1000)
"""
PARENT = """\
import os, sys, time
from pathlib import Path
from multi_dnn_ros.common.processes import Child, Interrupts
told, log = sys.argv[1:]
with Interrupts(), Child("sleeper", [told, "more"], Path(log), {}, "sleeper_of_this_test"):
    time.sleep(1000)
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A process that has started a Child, and what the child has told."""
    (tmp_path / "sleeper_of_this_test.py").write_text(SLEEPER)
    told, log = tmp_path / "told", tmp_path / "log"
    made = SimpleNamespace(told=told)

    def start(*prefix: str) -> None:
        default = ("env", "--default-signal=HUP")  # the tests may run under nohup
        command = [*(prefix or default), sys.executable, "-c", PARENT, str(told), str(log)]
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{Path.cwd()}"}
        made.parent = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, cwd=tmp_path)
        until(lambda: told.exists() and told.read_text(), "the child", told=lambda: log.read_text())
        made.child = psutil.Process(int(told.read_text().split()[0]))

    made.start = start
    yield made
    made.parent.kill()
    made.parent.communicate()
    if made.child.is_running():
        made.child.kill()


def test_a_module_runs_as_with_python_m(family: SimpleNamespace) -> None:
    family.start()
    expected = f"{family.child.pid} __main__ sleeper_of_this_test.py {[str(family.told), 'more']}"
    assert family.told.read_text() == expected
    assert "sleeper_of_this_test" in family.child.cmdline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_child_ends_with_its_parent(family: SimpleNamespace, number: signal.Signals) -> None:
    family.start()
    family.parent.send_signal(number)
    _, error = family.parent.communicate(timeout=60)
    assert (b"KeyboardInterrupt" in error) == (number != signal.SIGKILL)
    until(lambda: not runs(family.child), "the end of the child")


def test_a_closed_terminal_does_not_interrupt_under_nohup(family: SimpleNamespace) -> None:
    family.start("nohup")
    status = Path(f"/proc/{family.parent.pid}/status").read_text()
    ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
    assert ignored >> (signal.SIGHUP - 1) & 1
    family.parent.send_signal(signal.SIGHUP)
    family.parent.send_signal(signal.SIGTERM)
    family.parent.communicate(timeout=60)
    until(lambda: not runs(family.child), "the end of the child")


def test_another_program_ends_with_its_parent() -> None:
    code = """
import subprocess
from multi_dnn_ros.common.child_program import child_command
print(subprocess.Popen(child_command("sleep", "1000")).pid, flush=True)
input()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        until(lambda: child.name() == "sleep", "the program")
        parent.kill()
        parent.wait()
        until(lambda: not runs(child), "the end of the program")
    finally:
        parent.kill()
        parent.communicate()
        if child.is_running():
            child.kill()


def test_a_child_of_a_parent_that_has_ended_does_not_start() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    command = child_command("echo", "started")
    command[4] = str(ended.pid)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (72, "")
