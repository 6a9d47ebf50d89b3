"""Our commands as child processes on a ROS domain of their own."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from multi_dnn_ros.common.errors import CommandError

#: Consecutive reservations get different domains, so that late messages of the previous session do not arrive.
_claims = itertools.count()
#: Runs a module as `python -m` does. Arguments: process id of the parent, module, its arguments.
_PROGRAM = (
    "import runpy, sys; from multi_dnn_ros.common.processes import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); del sys.argv[:2]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def loopback_environment(domain: int) -> dict[str, str]:
    """Environment that restricts ROS to this domain and machine."""
    return {
        "ROS_DOMAIN_ID": str(domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        # The only option before Iron; later distributions warn about it.
        **({"ROS_LOCALHOST_ONLY": "1"} if os.environ.get("ROS_DISTRO") == "humble" else {}),
    }


@contextmanager
def reserved_domain() -> Iterator[int]:
    """Reserve a ROS domain ID that is unused on this machine until the block ends.

    Needed because our processes open their ports seconds after the domain was chosen. IDs are 20 to 99: the ports of
    IDs above 101 overlap Linux's ephemeral port range. Raises CommandError if all are in use.
    """
    first = os.getpid() + next(_claims)
    for step in range(80):
        domain = 20 + (first + step) % 80
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0multi_dnn_ros/domain/{domain}")  # abstract socket: released when the process ends
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("127.0.0.1", 7400 + 250 * domain + 10))  # discovery port of the first participant
            except OSError:
                continue
            yield domain
            return
    raise CommandError("every ROS domain from 20 to 99 is in use on this machine; end other ROS programs")


class Child:
    """A ``multi-dnn`` command as a child process.

    name: for messages. log: file for its output. Ctrl-C in the terminal reaches only us, as the child has its own
    session. The kernel kills it when the thread that has created this object ends, even if this process is killed.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, str(os.getpid()), "multi_dnn_ros.cli.main", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.peak_memory_bytes = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code; None while the child is running."""
        return self._process.poll()

    def sample(self) -> None:
        """Update :attr:`peak_memory_bytes` with the resident memory of the child and its descendants."""
        with suppress(psutil.Error):  # a process has just ended
            child = psutil.Process(self.pid)
            memory = sum(each.memory_info().rss for each in (child, *child.children(recursive=True)))
            self.peak_memory_bytes = max(self.peak_memory_bytes, memory)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Stop the child with SIGINT; kill it after the timeout. Returns False if it had to be killed."""
        self._process.send_signal(signal.SIGINT)  # nothing if it has ended
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:  # also when a second Ctrl-C interrupts the wait
            self._process.kill()
            self._process.wait()
        return True
