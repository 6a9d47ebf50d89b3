"""What systemd receives from the node: messages to a real Unix datagram socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_exports import quick_dnn

from multi_dnn_ros.demo.children import loopback_environment

WAIT_S = 120.0
PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {{object: {dnn}}}
"""
PROGRAM = "import sys; from multi_dnn_ros.executable import main; sys.exit(main(sys.argv[1:]))"


class Service:
    """The node as systemd runs it: Type=notify with a watchdog of 1 s. address: of the socket."""

    def __init__(self, folder: Path, domain: int, address: str, *options: str) -> None:
        self.log = folder / "node.log"
        params = folder / "params.yaml"
        params.write_text(PARAMETERS.format(dnn=quick_dnn(folder)))
        environment = {**os.environ, **loopback_environment(domain), "NOTIFY_SOCKET": address}
        environment["WATCHDOG_USEC"] = "1000000"
        # `exec` of a shell, so that WATCHDOG_PID is the process of the node, as in deploy/with_ros.sh.
        command = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", sys.executable, "-c", PROGRAM]
        command += ["--ros-args", "--params-file", str(params), *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address of a socket, and the socket."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@multi_dnn_ros/{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        listener.settimeout(WAIT_S)
        yield address, listener


def until(listener: socket.socket, condition: Callable[[dict[str, str]], bool]) -> list[dict[str, str]]:
    """The messages up to the first for which the condition is true."""
    found: list[dict[str, str]] = []
    while not found or not condition(found[-1]):
        found.append(dict(line.split("=", 1) for line in listener.recv(8192).decode().split("\n")))
    return found


def test_the_node_tells_when_it_is_ready_that_it_runs_and_that_it_stops(
    domain: int, tmp_path: Path, systemd: tuple[str, socket.socket]
) -> None:
    address, listener = systemd
    node = Service(tmp_path, domain, address)
    try:
        found = until(listener, lambda message: "READY" in message)
        assert found[-1]["STATUS"] == "active"
        assert [it for it in found if it.get("STATUS", "").startswith("configuring") and "EXTEND_TIMEOUT_USEC" in it]
        beats = [until(listener, lambda message: message.get("WATCHDOG") == "1") for _ in range(3)]
        assert len(beats) == 3
        node.process.send_signal(signal.SIGINT)
        last = until(listener, lambda message: "STOPPING" in message)[-1]
        assert last == {"STOPPING": "1", "STATUS": "received SIGINT, shutting down"}
        assert node.process.wait(30.0) == 0
    finally:
        node.close()
