"""Processes of a ROS 2 installation with its `ros2` commands, and a listening node in the test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from waiting import until

WAIT_S = 120.0


class Running:
    """A process with its output in a file, in a session of its own."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """Its descendants; none when it has ended."""
        return psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []

    def child(self, name: str) -> psutil.Process | None:
        """The first descendant with `name` in its command line."""
        found = (process for process in self.family() if any(name in word for word in _command_line(process)))
        return next(found, None)

    def interrupt(self) -> int:
        """Send SIGINT to the whole session, as Ctrl-C in a terminal does; the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        for process in (*self.family(), self.process):
            if process.is_running() if isinstance(process, psutil.Process) else process.poll() is None:
                process.kill()
        self.process.wait()


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # has ended
        return []


class RosSystem:
    """Starts processes and listens to topics. The environment of the test gives the domain."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Running] = []
        self._context = Context()
        rclpy.init(context=self._context)
        self.node = rclpy.create_node("observer", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)

    def start(self, *command: str) -> Running:
        running = Running(command, self._folder / f"{len(self._running)}.log")
        self._running.append(running)
        return running

    def launch(self, file: str, *arguments: str) -> Running:
        return self.start("ros2", "launch", "multi_dnn_ros", file, *arguments)

    def camera(self, *arguments: str) -> Running:
        """Generated images of 320x240 at 5 Hz."""
        return self.start(
            *("ros2", "run", "multi_dnn_ros", "multi-dnn", "camera", "scenes", "--size", "320x240", "--rate", "5"),
            *arguments,
        )

    def ros2(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a `ros2` command."""
        done = subprocess.run(["ros2", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
        return done.returncode, done.stdout + done.stderr

    def listen(self, topic: str, kind: type) -> list[Any]:
        heard: list[Any] = []
        self.node.create_subscription(kind, topic, heard.append, QoSProfile(depth=50))
        return heard

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of a condition, while callbacks run."""

        def answer() -> Any:
            self._executor.spin_once(timeout_sec=0.02)
            return condition()

        return until(answer, what, WAIT_S, lambda: "\n".join(each.text()[-2000:] for each in self._running))

    def __enter__(self) -> RosSystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for running in reversed(self._running):
            running.kill()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)
        subprocess.run(["ros2", "daemon", "stop"], capture_output=True, timeout=60, check=False)
