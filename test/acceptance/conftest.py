"""Fixtures of the black-box suite: a ROS domain for the worker, a client for the module, and nodes that it starts."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import RUNNING, Client, Node

#: What a test shows of the log of each node.
_LOG_LINES = 80


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows the end of the log of every node of the module."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for node in RUNNING:
            lines = node.log.splitlines()[-_LOG_LINES:]
            report.sections.append((f"log of {node.name}, exit code {node.process.poll()}", "\n".join(lines)))


@pytest.fixture(scope="session")
def domain() -> Iterator[int]:
    """A ROS domain that no other worker on this computer uses."""
    for domain in range(1, 20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0acceptance tests/domain/{domain}")  # released when the process ends
            except OSError:
                continue
            # For the client, which is in this process, and for the processes that tests start.
            os.environ |= {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
            yield domain
            return
    pytest.fail("the ROS domains 1 to 19 are in use by other runs of these tests")


@pytest.fixture(scope="module")
def client(domain: int) -> Iterator[Client]:
    client = Client(domain)
    yield client
    client.close()


@pytest.fixture(scope="module")
def start_node(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Starts nodes; ends those that still run at the end of the module, and checks that each ends with 0."""
    folder: Path = tmp_path_factory.mktemp("nodes")
    started: list[Node] = []

    def start(parameters: dict[str, Any], **options: Any) -> Node:
        node = Node(client, folder, {"device": "cpu", "diagnostics_period_s": 0.1, **parameters}, **options)
        started.append(node)
        return node

    yield start
    try:
        codes = {node.log_file.name: node.end() for node in started if node.process.poll() is None}
        assert not any(codes.values()), codes
    finally:
        for node in started:
            node.end(signal.SIGKILL)
            RUNNING.remove(node)


@pytest.fixture(scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Commands keep their caches in this folder from now on, instead of the user's."""
    folder: Path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
