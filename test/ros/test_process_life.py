"""The node and its engine process: life cycle, responses while configuring, and every way to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from fork_server import ForkServer
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from tiny_exports import quick_dnn
from waiting import runs, until

from multi_dnn_ros.demo.children import loopback_environment

WAIT_S = 120.0
PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {{object: {dnn}}}
    cpu_threads: 1
    diagnostics_period_s: 0.1
"""
TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "cleanup": Transition.TRANSITION_CLEANUP,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
    "shutdown": Transition.TRANSITION_UNCONFIGURED_SHUTDOWN,
}


class Robot:
    """A process with the node, and a peer node in the test."""

    def __init__(self, folder: Path, domain: int) -> None:
        self.log = folder / "node.log"
        parameters = folder / "parameters.yaml"
        parameters.write_text(PARAMETERS.format(dnn=quick_dnn(folder)))
        self.model = str(folder / "tiny.onnx")
        self._command = [sys.executable, "-m", "multi_dnn_ros.cli.main", "run", "--params-file", str(parameters)]
        self._environment = {**os.environ, **loopback_environment(domain)}
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.peer = rclpy.create_node("peer", context=self.context)
        self.executor.add_node(self.peer)
        self.reports: list[Any] = []
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self.reports.append, QoSProfile(depth=100))
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: dict[str, Any] = {}
        self._seen: set[psutil.Process] = set()

    def start(
        self,
        *parameters: str,
        autostart: bool,
        server: ForkServer | None = None,
        engines_import: bool = False,
        output: int | None = None,
    ) -> None:
        """server: forks the node, and its engine processes, too, unless they shall import what they need. output: a
        descriptor for stdout and stderr instead of the log file.
        """
        start = subprocess.Popen if server is None else server.popen
        if engines_import:
            self._environment["FORK_SERVER"] = "off"
        arguments = [f"autostart:={str(autostart).lower()}", *parameters]
        command = [*self._command, "--ros-args", *(word for argument in arguments for word in ("-p", argument))]
        with self.log.open("wb") as log:
            self.process = start(
                command, stdout=log if output is None else output, stderr=subprocess.STDOUT, env=self._environment
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {WAIT_S:g} s for {what}: {self.text()[-3000:]}"
            self.executor.spin_once(timeout_sec=0.02)

    def client(self, kind: type, name: str) -> Any:
        """One for each service: Fast DDS may lose the response to a client that the server does not know yet."""
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self.peer.create_client(kind, f"/multi_dnn/{name}")
        self.until(client.service_is_ready, name)
        return client

    def call(self, kind: type, name: str, request: Any) -> Any:
        client = self.client(kind, name)
        future = client.call_async(request)
        self.until(future.done, name)
        return future.result()

    def ask(self, transition: str) -> Any:
        """Request a transition; returns the future of the response."""
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[transition]))
        return self.client(ChangeState, "change_state").call_async(request)

    def change(self, transition: str) -> bool:
        future = self.ask(transition)
        self.until(future.done, transition)
        return bool(future.result().success)

    def set(self, name: str, value: Any) -> None:
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        (result,) = self.call(SetParameters, "set_parameters", request).results
        assert result.successful, result.reason

    def state(self) -> str:
        return str(self.call(GetState, "get_state", GetState.Request()).current_state.label)

    def message(self) -> str:
        """The message of the node's newest status."""
        for report in reversed(self.reports):
            for status in report.status:
                if status.name.endswith(": node"):
                    return str(status.message)
        return ""

    def engines(self) -> list[psutil.Process]:
        """Descendants of the node's process, without a server that forks them."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        found = [process for process in family if "fork_server" not in _command_line(process)]
        self._seen.update(found)
        return found

    def loading(self) -> None:
        """Wait until an engine process has begun to load PyTorch."""
        self.until(lambda: any("libtorch" in _maps(engine.pid) for engine in self.engines()), "an engine that loads")

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(WAIT_S)

    def engines_run(self) -> bool:
        """Whether an engine process runs that was seen; zombies do not."""
        return any(map(runs, self._seen))

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for process in self._seen:
            if process.is_running():
                process.kill()
        self.executor.shutdown()
        self.peer.destroy_node()
        rclpy.shutdown(context=self.context)


def _command_line(process: psutil.Process) -> str:
    """Empty if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


@pytest.fixture
def robot(domain: int, tmp_path: Path) -> Iterator[Robot]:
    instance = Robot(tmp_path, domain)
    yield instance
    instance.close()


def test_the_life_cycle_leaves_no_process_and_can_be_repeated_after_failures(
    robot: Robot, fork_server: ForkServer
) -> None:
    robot.start(autostart=False, server=fork_server)  # the life of new interpreters: test_service_status
    for size in (1, 2):
        robot.set("workers", size)
        assert robot.change("configure")
        assert robot.engines()
        assert robot.change("activate")
        robot.until(lambda: robot.message() == "active", "the report")
        assert robot.change("deactivate")
        assert robot.engines()
        assert robot.change("cleanup")
        assert robot.engines() == []
        assert f"workers {size} on cpu" in robot.text()
        if size == 1:  # everything that is created only once exists by now
            _configuring_that_fails_leaves_nothing_behind(robot)
    robot.process.send_signal(signal.SIGINT)
    assert robot.wait() == 0
    assert not robot.engines_run()


def _configuring_that_fails_leaves_nothing_behind(robot: Robot) -> None:
    robot.set("dnn.object.model", "nowhere.onnx")
    node = psutil.Process(robot.process.pid)
    assert not robot.change("configure")
    before = node.num_fds(), node.num_threads()
    assert not robot.change("configure")
    assert robot.engines() == []
    # Threads of the middleware come and go: what counts is that none stays.
    robot.until(lambda: node.num_fds() <= before[0] and node.num_threads() <= before[1], "no thread or file more")
    robot.until(lambda: "nowhere.onnx" in robot.message(), "the reason")
    robot.set("dnn.object.model", robot.model)


def test_services_and_diagnostics_respond_while_configuring(robot: Robot, fork_server: ForkServer) -> None:
    default_settings = ("dnn.lane.backend:=auto", "dnn.lane.jobs:=4")
    fast_settings = ("dnn.pedestrian.backend:=eager", "dnn.pedestrian.jobs:=1")
    robot.start("dnns:=[lane, pedestrian]", *default_settings, *fast_settings, autostart=False, server=fork_server)
    get_state, get_parameters = robot.client(GetState, "get_state"), robot.client(GetParameters, "get_parameters")
    parameters = GetParameters.Request(names=["workers", "dnns"])
    configured = robot.ask("configure")
    robot.until(robot.engines, "the engine process")
    answers, received = 0, len(robot.reports)
    while not configured.done():
        for client, request in ((get_state, GetState.Request()), (get_parameters, parameters)):
            future = client.call_async(request)
            robot.until(future.done, "an answer")
            answers += 1
        reports = len(robot.reports)
        robot.until(lambda: configured.done() or len(robot.reports) > reports, "diagnostics")  # noqa: B023
    assert configured.result().success
    assert answers >= 4, "a request waited for configuring"
    assert len(robot.reports) >= received + 2
    messages = {
        status.message for report in robot.reports for status in report.status if status.name.endswith(": node")
    }
    assert any(message.startswith("configuring: DNN 2 of 2") for message in messages)


# Cancelling by shutdown and by a signal is tested below; by cleanup, with a host in the test's process, in
# test_transitions.
@pytest.mark.long
def test_configuring_is_cancelled_quickly_by_cleanup_and_by_the_end_of_the_node(robot: Robot) -> None:
    robot.start(autostart=False)
    _cancelled(robot, "cleanup")
    assert robot.state() == "unconfigured"
    robot.set("dnn.object.model", "nowhere.onnx")  # the search for mistakes is cancelled, too
    _cancelled(robot, "cleanup")
    robot.set("dnn.object.model", robot.model)
    assert robot.change("configure")
    assert robot.change("cleanup")
    # A client is answered when the node ends.
    configured = robot.ask("configure")
    robot.loading()
    threading.Timer(0.0, robot.process.send_signal, (signal.SIGINT,)).start()
    robot.until(configured.done, "the answer")
    assert not configured.result().success
    assert robot.wait() == 0
    assert not robot.engines_run()
    assert "Traceback" not in robot.text()


def test_configuring_is_cancelled_quickly_by_shutdown(robot: Robot, fork_server: ForkServer) -> None:
    robot.start(autostart=False, server=fork_server, engines_import=True)
    _cancelled(robot, "shutdown")
    assert robot.state() == "finalized"


def _cancelled(robot: Robot, transition: str) -> None:
    """Request configuring, and another transition while the node configures."""
    configured = robot.ask("configure")
    robot.loading()
    assert robot.change(transition)
    robot.until(configured.done, "the answer to configure")
    assert not configured.result().success
    assert robot.engines() == []


@pytest.mark.parametrize(
    ("state", "numbers"),
    [
        ("configuring", (signal.SIGTERM,)),
        # One signal while configuring is above, two while active are below.
        pytest.param("configuring", (signal.SIGINT, signal.SIGINT), marks=pytest.mark.long),
        ("active", (signal.SIGINT, signal.SIGINT)),
        pytest.param("active", (signal.SIGINT,), marks=pytest.mark.long),  # the first of the two above
        pytest.param("active", (signal.SIGTERM,), marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_everything_once(
    robot: Robot, state: str, numbers: tuple[signal.Signals, ...], fork_server: ForkServer
) -> None:
    robot.start(autostart=True, server=fork_server if state == "active" else None)
    if state == "configuring":
        robot.loading()
    else:
        robot.until(lambda: robot.message() == "active" and robot.engines(), "active")
    for number in numbers:
        robot.process.send_signal(number)
        robot.until(lambda number=number: f"received {number.name}" in robot.text(), "the signal to be received")
    assert robot.wait() == 0
    assert not robot.engines_run()
    assert "Traceback" not in robot.text()


# An engine process also imports while it configures.
@pytest.mark.parametrize("state", [pytest.param("starting", marks=pytest.mark.long), "configuring", "active"])
def test_engine_processes_end_with_a_node_that_is_killed(robot: Robot, state: str, fork_server: ForkServer) -> None:
    robot.start(autostart=True, server=fork_server, engines_import=state != "active")
    if state == "starting":
        robot.until(robot.engines, "an engine process")
    elif state == "configuring":
        robot.loading()
    else:
        robot.until(lambda: robot.message() == "active" and robot.engines(), "active")
    robot.process.kill()
    until(lambda: not robot.engines_run(), "the end of the engine processes")
