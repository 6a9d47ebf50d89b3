"""Our commands as processes: started with their output in a log file, and ended whatever happens."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil

from multi_dnn_ros.common.errors import CommandError

#: The next block of a process gets another domain: nothing of the one before may still be heard there.
_claims = itertools.count()


def on_loopback(domain: int) -> dict[str, str]:
    """Environment in which ROS speaks in this domain, on this machine only."""
    return {
        "ROS_DOMAIN_ID": str(domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        # Before Iron there was only this one; newer ones warn about it.
        **({"ROS_LOCALHOST_ONLY": "1"} if os.environ.get("ROS_DISTRO") == "humble" else {}),
    }


@contextmanager
def claimed_domain() -> Iterator[int]:
    """A ROS domain that nobody on this machine has open, and that nobody else is given here until the block ends.

    Processes of ours open theirs seconds after it was chosen. From 20 to 99: ports of those above 101 lie where Linux
    takes the ports of outgoing connections from.
    """
    first = os.getpid() + next(_claims)
    for step in range(80):
        domain = 20 + (first + step) % 80
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0multi_dnn_ros/domain/{domain}")  # no file: it is gone with the process that has it
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("127.0.0.1", 7400 + 250 * domain + 10))  # its first participant listens there
            except OSError:
                continue
            yield domain
            return
    raise CommandError("every ROS domain from 20 to 99 is in use on this machine; choose one with --domain-id")


class Interrupts:
    """SIGINT and SIGTERM as KeyboardInterrupt, so that either ends what we started; a context manager.

    Inside :meth:`held` they wait for the end of the block: a process that was just started must be known to whoever
    ends it before anything is raised.
    """

    def __init__(self) -> None:
        self._held = False
        self._waiting = False
        self._before: dict[int, Any] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waiting:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        with suppress(ValueError):  # not the main thread: whoever has it decides
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._waiting = True
        if not self._held:
            raise KeyboardInterrupt


class Child:
    """A ``multi-dnn`` command in a process of its own; a context manager that ends it.

    name: for messages. log: file for its output. environment: on top of ours. module: what runs in place of the
    command.
    The process gets a session of its own: a Ctrl-C in the terminal reaches us only, and we end it in our order.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        module: str = "multi_dnn_ros.cli.main",
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._statistics = psutil.Process(self._process.pid)
        self.peak_memory_bytes = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def sample(self) -> None:
        """Look at the resident memory of it and its processes, for :attr:`peak_memory_bytes`."""
        memory = 0
        try:
            for process in (self._statistics, *self._statistics.children(recursive=True)):
                memory += process.memory_info().rss
        except psutil.Error:  # one has just ended
            return
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End it as Ctrl-C does; kill it when that takes too long. False when it had to be killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:  # also when a second Ctrl-C interrupts the wait
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        return True

    def last_lines(self, count: int = 5) -> str:
        """The end of its output, for an error message."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-count:])

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
