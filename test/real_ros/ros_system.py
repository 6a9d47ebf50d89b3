"""Processes of a real ROS 2, and a listening node in the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile

WAIT_S = 90.0
#: How long the tools may take to discover a running node.
DISCOVERY_S = 20.0
#: Variables of a ROS 2 environment; without them, our command runs on the standalone runtime.
_ROS_VARIABLES = ("AMENT_PREFIX_PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "COLCON_PREFIX_PATH", "CMAKE_PREFIX_PATH",
           "ROS_DISTRO", "ROS_VERSION", "ROS_PYTHON_VERSION", "RMW_IMPLEMENTATION")  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]


class Running:
    """A process with its output in a file. Ending it also ends its descendants."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def child(self, name: str) -> psutil.Process:
        """The descendant with `name` in its command line."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            if any(name in word for word in process.cmdline()):
                return process
        raise AssertionError(f"no process {name}: {self.text()}")

    def end(self, number: signal.Signals = signal.SIGINT, timeout_s: float = 20.0) -> int:
        """Send a signal and wait; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        family = [*psutil.Process(self.process.pid).children(recursive=True)] if self.process.poll() is None else []
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)  # as Ctrl-C does: `ros2 run` does not pass it on to its node
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in family:
            if process.is_running():
                process.kill()


class RosSystem:
    """Starts processes in a domain of its own and listens to topics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Running] = []
        self._changed = threading.Condition()
        self._context = Context()
        rclpy.init(context=self._context)
        self.node = rclpy.create_node("observer", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def start(self, *command: str) -> Running:
        running = Running(command, self.folder / f"{len(self.running)}.log")
        self.running.append(running)
        return running

    def start_standalone(self, *arguments: str) -> Running:
        """Start `multi-dnn ...` from the checkout on the standalone runtime, as without ROS 2."""
        environment = {name: value for name, value in os.environ.items() if name not in _ROS_VARIABLES}
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, "-u", "-m", "multi_dnn_ros.cli.main", *arguments]
        running = Running(command, self.folder / f"{len(self.running)}.log", environment)
        self.running.append(running)
        return running

    def ros2(self, *arguments: str, timeout_s: float = 120.0, middleware: str | None = None) -> tuple[int, str]:
        """Exit code and output of a `ros2` command. middleware: RMW_IMPLEMENTATION; None: the test's."""
        environment = {**os.environ, **({"RMW_IMPLEMENTATION": middleware} if middleware else {})}
        deadline = time.monotonic() + DISCOVERY_S
        while True:
            done = subprocess.run(
                ["ros2", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
            )
            # The ros2 daemon may have been started just now and not have discovered the node yet.
            if "Node not found" not in done.stdout + done.stderr or time.monotonic() > deadline:
                return done.returncode, done.stdout + done.stderr

    def listen(self, topic: str, kind: type, qos: QoSProfile | None = None) -> list[Any]:
        heard: list[Any] = []

        def receive(message: Any) -> None:
            with self._changed:
                heard.append(message)
                self._changed.notify_all()

        self.node.create_subscription(kind, topic, receive, qos or QoSProfile(depth=50))
        return heard

    def until(self, condition: Callable[[], object], what: str, limit_s: float = WAIT_S) -> float:
        """Wait for a condition; returns the seconds it took."""
        begin = time.monotonic()
        with self._changed:
            while not condition():
                left_s = begin + limit_s - time.monotonic()
                assert left_s > 0, f"waited {limit_s:g} s for {what}\n" + "\n".join(
                    r.text()[-2000:] for r in self.running
                )
                self._changed.wait(min(left_s, 0.2))
        return time.monotonic() - begin

    def __enter__(self) -> RosSystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for running in reversed(self.running):
            running.kill()
        self._executor.shutdown()
        self._thread.join(10.0)
        assert error or not self._thread.is_alive()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)
        subprocess.run(["ros2", "daemon", "stop"], capture_output=True, timeout=60, check=False)
