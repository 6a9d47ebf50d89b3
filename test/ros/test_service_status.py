"""What a service manager receives from the node: messages to a real Unix datagram socket, as systemd opens it."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fork_server import ForkServer
from tiny_exports import quick_dnn

from multi_dnn_ros.demo.children import loopback_environment
from multi_dnn_ros.ros.service_status import NodeState, ServiceManager, ServiceStatus

WAIT_S = 120.0


class Systemd:
    """Receives the messages of a service. address: @ and the name of an abstract socket, or a path."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.messages: list[dict[str, str]] = []
        self.times: list[float] = []

    def receive(self, timeout_s: float) -> dict[str, str] | None:
        """The next message; None on timeout."""
        self._socket.settimeout(timeout_s)
        try:
            text = self._socket.recv(8192).decode()
        except TimeoutError:
            return None
        message = dict(line.split("=", 1) for line in text.split("\n"))
        self.messages.append(message)
        self.times.append(time.monotonic())
        return message

    def until(self, condition: Callable[[dict[str, str]], bool], what: str) -> dict[str, str]:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            message = self.receive(1.0)
            if message is not None and condition(message):
                return message
        raise AssertionError(f"waited {WAIT_S:g} s for {what}: {self.messages}")

    def values(self, name: str) -> list[str]:
        return [message[name] for message in self.messages if name in message]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    instance = Systemd(str(tmp_path / "notify"))
    yield instance
    instance.close()


@pytest.fixture
def abstract() -> Iterator[Systemd]:
    instance = Systemd(f"@multi_dnn_ros/test/{os.getpid()}/{time.monotonic_ns()}")
    yield instance
    instance.close()


# -- the protocol


@pytest.mark.parametrize("kind", ["systemd", "abstract"])
def test_a_message_reaches_a_socket_with_a_path_and_an_abstract_one(kind: str, request: pytest.FixtureRequest) -> None:
    listener = request.getfixturevalue(kind)
    environment = {"NOTIFY_SOCKET": listener.address, "HOME": "/"}
    manager = ServiceManager.from_environment(environment)
    assert manager is not None
    assert environment == {"HOME": "/"}, "child processes must not inherit the variables"
    assert manager.watchdog_s is None
    assert manager.send(READY=1, STATUS="configuring:\nDNN 2 of 3")
    manager.close()
    assert listener.receive(5.0) == {"READY": "1", "STATUS": "configuring:; DNN 2 of 3"}


def test_a_socket_that_does_not_exist_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager(str(tmp_path / "nowhere"))
    assert [manager.send(WATCHDOG=1) for _ in range(3)] == [False] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(tmp_path / "nowhere") in caplog.text


def test_a_manager_that_does_not_read_does_not_block_the_service(systemd: Systemd) -> None:
    manager = ServiceManager(systemd.address)
    begin = time.monotonic()
    while manager.send(STATUS="x" * 2000):
        assert time.monotonic() - begin < WAIT_S
    assert systemd.receive(5.0) is not None
    assert manager.send(WATCHDOG=1), "sends again once there is room"


@pytest.mark.parametrize(
    ("period_us", "pid", "watchdog_s"),
    [("10000000", "", 10.0), ("10000000", "own", 10.0), ("10000000", "1", None), ("soon", "", None)],
)
def test_the_period_of_the_watchdog(period_us: str, pid: str, watchdog_s: float | None) -> None:
    environment = {
        "NOTIFY_SOCKET": "@somewhere",
        "WATCHDOG_USEC": period_us,
        "WATCHDOG_PID": str(os.getpid()) if pid == "own" else pid,
    }
    manager = ServiceManager.from_environment(environment)
    assert manager is not None
    assert manager.watchdog_s == watchdog_s
    manager.close()


class Service:
    """A ServiceStatus with a fake clock and a fake node."""

    def __init__(self, systemd: Systemd, *, autostart: bool = True, watchdog_s: float | None = 4.0) -> None:
        self.now = 100.0
        self.node_state = NodeState("unconfigured", "unconfigured")
        self.systemd = systemd
        manager = ServiceManager(systemd.address, watchdog_s)
        self.status = ServiceStatus(manager, lambda: self.node_state, autostart=autostart, clock=lambda: self.now)

    def turn(self, after_s: float = 0.1, **node_state: object) -> list[dict[str, str]]:
        """Update every 0.1 s for this time, as the executor's loop does; returns the messages."""
        self.node_state = dataclasses.replace(self.node_state, **node_state)
        for _ in range(round(after_s / 0.1)):
            self.now += 0.1
            self.status.update()
        before = len(self.systemd.messages)
        while self.systemd.receive(0.0001) is not None:
            pass
        return self.systemd.messages[before:]


def test_ready_follows_activation_and_configuring_extends_the_timeout(systemd: Systemd) -> None:
    service = Service(systemd, watchdog_s=None)
    assert service.turn() == [{"STATUS": "unconfigured"}]
    found = service.turn(4.5, state="configuring", text="configuring: DNN 1 of 3, tracing")
    assert found[0] == {"STATUS": "configuring: DNN 1 of 3, tracing", "EXTEND_TIMEOUT_USEC": "30000000"}
    assert 2 <= len(found) - 1 <= 4
    assert all(message == {"EXTEND_TIMEOUT_USEC": "30000000"} for message in found[1:])
    assert service.turn(1.1, state="inactive", text="inactive") == [{"STATUS": "inactive"}]
    assert service.turn(1.1, state="active", text="active") == [{"READY": "1", "STATUS": "active"}]
    assert service.turn(5.0) == []
    # Configured again by hand: the service has started, so there is no timeout to extend and nothing to repeat.
    assert service.turn(1.1, state="configuring", text="configuring: x") == [{"STATUS": "configuring: x"}]
    assert service.turn(1.1, state="active", text="active") == [{"STATUS": "active"}]


def test_a_failed_start_is_never_ready(systemd: Systemd) -> None:
    service = Service(systemd, watchdog_s=None)
    service.turn(1.0, state="configuring", text="configuring: x")
    found = service.turn(60.0, state="unconfigured", text="cannot configure: a\nb")
    assert found == [{"STATUS": "cannot configure: a; b"}]


def test_without_autostart_the_node_is_ready_to_be_configured_by_others(systemd: Systemd) -> None:
    service = Service(systemd, autostart=False, watchdog_s=None)
    assert service.turn() == [{"READY": "1", "STATUS": "unconfigured"}]
    assert service.turn(1.1, state="configuring", text="configuring: x") == [{"STATUS": "configuring: x"}]


def test_heartbeats_have_half_the_period_of_the_watchdog(systemd: Systemd) -> None:
    service = Service(systemd, watchdog_s=4.0)
    service.turn(1.1, state="active", text="active")
    beats = [message for message in service.turn(20.0) if "WATCHDOG" in message]
    assert 9 <= len(beats) <= 10
    assert all(beat == {"WATCHDOG": "1"} for beat in beats)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"supervision_age_s": 2.1}, "the supervision of the engine processes has not run for more than 2 s"),
        ({"ended": ("decoder front",)}, "threads ended with an error: decoder front"),
    ],
)
def test_heartbeats_end_with_a_fault_and_return_after_it(
    systemd: Systemd, fault: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(systemd, watchdog_s=4.0)
    service.turn(4.1, state="active", text="active", supervision_age_s=0.05)
    before = service.node_state
    assert service.turn(20.0, **fault) == []
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert words in caplog.text
    service.node_state = before
    assert {"WATCHDOG": "1"} in service.turn(4.0)


# -- the process of the node

PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {{object: {dnn}}}
    cpu_threads: 1
    diagnostics_period_s: 0.1
"""
#: The program that systemd starts.
PROGRAM = "import sys; from multi_dnn_ros.executable import main; sys.exit(main(sys.argv[1:]))"
#: Start of a program that runs as a fork, with its engine processes; WATCHDOG_PID is set as `exec` of a shell keeps it.
FORKED = "import fork_server, os; fork_server.install(); os.environ['WATCHDOG_PID'] = str(os.getpid())\n"
#: A node whose diagnostics callback blocks from the moment at which a file exists.
BLOCKING = """
import sys, time
from pathlib import Path
from multi_dnn_ros.ros import node_diagnostics, process

publish = node_diagnostics.NodeDiagnostics._publish

def blocking(self):
    publish(self)
    while Path({flag!r}).exists():
        time.sleep(0.01)

node_diagnostics.NodeDiagnostics._publish = blocking
sys.exit(process.run(sys.argv[1:]))
"""
WATCHDOG_S = 1.0


class NodeService:
    """Runs the node as systemd does: Type=notify with a watchdog.

    server: starts it as a fork; None: it is a new interpreter.
    """

    def __init__(
        self, folder: Path, domain: int, systemd: Systemd, program: str = PROGRAM, server: ForkServer | None = None
    ) -> None:
        self.log = folder / "node.log"
        params = folder / "params.yaml"
        params.write_text(PARAMETERS.format(dnn=quick_dnn(folder)))
        arguments = ["--ros-args", "--params-file", str(params)]
        environment = {
            **os.environ,
            **loopback_environment(domain),
            "NOTIFY_SOCKET": systemd.address,
            "WATCHDOG_USEC": str(round(WATCHDOG_S * 1e6)),
        }
        with self.log.open("wb") as log:
            if server is not None:
                command = [sys.executable, "-c", FORKED + program, *arguments]
                self.process = server.popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            else:
                # `exec` of a shell, so that WATCHDOG_PID is the process of the node, as in deploy/with_ros.sh.
                command = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", sys.executable, "-c", program, *arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def test_the_node_tells_systemd_when_it_is_ready_that_it_runs_and_that_it_stops(
    domain: int, tmp_path: Path, abstract: Systemd
) -> None:
    node = NodeService(tmp_path, domain, abstract)
    try:
        abstract.until(lambda message: "READY" in message, "READY")
        assert abstract.values("STATUS")[-1] == "active", abstract.messages
        configuring = [text for text in abstract.values("STATUS") if text.startswith("configuring")]
        assert configuring, abstract.messages
        assert abstract.values("EXTEND_TIMEOUT_USEC")
        assert "libtorch" not in Path(f"/proc/{node.process.pid}/maps").read_text(), "only engine processes need it"
        count = len(abstract.times)
        while len(abstract.times) < count + 3:
            assert abstract.until(lambda message: "WATCHDOG" in message, "a heartbeat") == {"WATCHDOG": "1"}
        node.process.send_signal(signal.SIGINT)
        last = abstract.until(lambda message: "STOPPING" in message, "STOPPING")
        assert last == {"STOPPING": "1", "STATUS": "received SIGINT, shutting down"}
        assert node.process.wait(30.0) == 0
        assert abstract.receive(0.1) is None
        assert abstract.values("READY") == ["1"]
        assert "NOTIFY_SOCKET" not in node.text()
    finally:
        node.close()


def test_a_callback_that_blocks_ends_the_heartbeats(
    domain: int, tmp_path: Path, systemd: Systemd, fork_server: ForkServer
) -> None:
    flag = tmp_path / "block"
    node = NodeService(tmp_path, domain, systemd, BLOCKING.format(flag=str(flag)), fork_server)
    try:
        systemd.until(lambda message: "READY" in message, "READY")
        systemd.until(lambda message: "WATCHDOG" in message, "a heartbeat")
        flag.touch()
        end = time.monotonic() + WAIT_S
        while systemd.receive(1.5 * WATCHDOG_S) is not None:  # as long as systemd would wait, and more
            assert time.monotonic() < end, "heartbeats go on while a callback blocks"
        assert node.process.poll() is None
        flag.unlink()
        systemd.until(lambda message: "WATCHDOG" in message, "a heartbeat after the callback")
        node.process.send_signal(signal.SIGSTOP)
        while systemd.receive(1.5 * WATCHDOG_S) is not None:
            assert time.monotonic() < end, "heartbeats go on while the process is stopped"
    finally:
        node.close()


def test_a_socket_that_does_not_exist_does_not_stop_the_node(
    domain: int, tmp_path: Path, systemd: Systemd, fork_server: ForkServer
) -> None:
    systemd.address = str(tmp_path / "nowhere")
    node = NodeService(tmp_path, domain, systemd, server=fork_server)
    try:
        end = time.monotonic() + WAIT_S
        while " active" not in node.text():
            assert time.monotonic() < end, node.text()
            time.sleep(0.05)
        node.process.send_signal(signal.SIGINT)
        assert node.process.wait(30.0) == 0
        assert node.text().count("NOTIFY_SOCKET") == 1, node.text()
    finally:
        node.close()
