"""Children end with the process that started them, also if that is killed; their ROS domains are their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from waiting import runs, until

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.demo.children import reserved_domain

SLEEPER = """\
import os, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(f"{os.getpid()} {__name__} {Path(sys.argv[0]).name} {sys.argv[1:]}")
time.sleep(1000)
"""
PARENT = """\
import sys, time
from pathlib import Path
from multi_dnn_ros.common.processes import interrupts
from multi_dnn_ros.demo.children import Child
told, log = sys.argv[1:]
with interrupts(), Child("sleeper", [told, "more"], Path(log), {}, "sleeper_of_this_test"):
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_runs_as_with_python_m_and_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "sleeper_of_this_test.py").write_text(SLEEPER)
    told, log = tmp_path / "told", tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{Path.cwd()}"}
    command = [sys.executable, "-c", PARENT, str(told), str(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, cwd=tmp_path) as parent:
        try:
            until(lambda: told.exists() and told.read_text(), "the child", told=lambda: log.read_text())
            child = psutil.Process(int(told.read_text().split()[0]))
            assert told.read_text() == f"{child.pid} __main__ sleeper_of_this_test.py {[str(told), 'more']}"
            parent.send_signal(number)
            _, error = parent.communicate(timeout=60)
            assert (b"KeyboardInterrupt" in error) == (number != signal.SIGKILL)
            until(lambda: not runs(child), "the end of the child")
        finally:
            parent.kill()


def test_domains_in_use_are_skipped_and_an_error_says_when_none_is_free() -> None:
    with ExitStack() as stack:
        with reserved_domain() as domain:
            pass
        other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        other.bind(("0.0.0.0", 7400 + 250 * domain + 10))  # as a participant of another ROS 2 does
        mine = []
        with pytest.raises(CommandError, match=r"every ROS domain from 20 to 99 is in use"):
            mine.extend(stack.enter_context(reserved_domain()) for _ in range(81))
        assert domain not in mine
