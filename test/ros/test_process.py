"""The process of the node: start, imports, memory, end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fork_server import ForkServer

from multi_dnn_ros.demo.children import loopback_environment


def run(code: str, domain: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **loopback_environment(domain)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_libraries_are_imported_ends_the_executable_quietly(name: str) -> None:
    code = f"""
import signal, sys
from multi_dnn_ros.executable import main

class Importing:
    def find_spec(self, module, path, target=None):
        if module == "multi_dnn_ros.ros":
            signal.raise_signal(signal.{name})

sys.meta_path.insert(0, Importing())
main()
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("argument", ["use_sim_time:=5", "no_assignment"])
def test_a_wrong_argument_is_an_error_in_one_line_that_names_the_program(
    domain: int, fork_server: ForkServer, argument: str
) -> None:
    program = "from multi_dnn_ros.executable import main; raise SystemExit(main())"
    environment = {**os.environ, **loopback_environment(domain)}
    done = fork_server.run([sys.executable, "-c", program, "--ros-args", "-p", argument], timeout=60, env=environment)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("multi_dnn_node: ")]
    assert argument.partition(":")[0] in line
    assert "Traceback" not in done.stderr


def test_a_signal_ends_a_process_that_is_loading_a_local_engine(domain: int) -> None:
    """The loading thread stays inside PyTorch; finalizing the interpreter meanwhile would abort the process."""
    code = """
import os, signal, threading
from multi_dnn_ros.ros import process
from multi_dnn_ros.serving.engine_main import EngineProgram

def configure(*arguments):
    import torch
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        torch.autograd.functional.jacobian(lambda v: v * 2, torch.ones(3))

assert callable(EngineProgram._configure)
EngineProgram._configure = configure
raise SystemExit(process.run(["--ros-args", "-p", "isolation:=none"]))
"""
    done = run(code, domain)
    assert done.returncode == 0, done.stderr
    assert "received SIGINT, shutting down" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_node_logs_errors_of_callbacks_but_not_that_a_transition_destroyed_a_subscription(domain: int) -> None:
    code = """
import logging, os, signal
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.task import Task
from multi_dnn_ros.ros import process

def broken():
    logging.getLogger("multi_dnn_ros.anything").info("a line of the package")
    raise RuntimeError("a broken callback")

def destroyed():
    raise rclpy_implementation.InvalidHandle("a destroyed subscription")

steps = [destroyed, lambda: (Task(broken), None, None)]

class Executor(SingleThreadedExecutor):
    def wait_for_ready_callbacks(self, *args, **kwargs):
        if steps:
            return steps.pop()()
        os.kill(os.getpid(), signal.SIGINT)
        return Task(lambda: None), None, None

process.SingleThreadedExecutor = Executor
raise SystemExit(process.run(["--ros-args", "-p", "autostart:=false"]))
"""
    done = run(code, domain)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a callback failed; the node keeps running") == 1
    assert "RuntimeError: a broken callback" in done.stderr
    assert "[multi_dnn]: a line of the package" in done.stderr + done.stdout
    assert "a destroyed subscription" not in done.stderr
