"""Two nodes with one name: each warns, in the log and in its status, until the other has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rclpy
from fork_server import ForkServer
from hypothesis import given
from hypothesis import strategies as st
from node_bench import Bench

from multi_dnn_ros.common.processes import loopback_environment
from multi_dnn_ros.ros import same_name
from multi_dnn_ros.ros.same_name import CONFIRMED_S, SameNameCheck

WARNING = "another node is named /multi_dnn, too: the parameters, services and topics of these nodes"
GONE = "no other node is named /multi_dnn any more"
WAIT_S = 60.0 + CONFIRMED_S


class Run:
    """A process of `multi-dnn run` that does not configure itself, and its log."""

    def __init__(self, server: ForkServer, domain: int, log: Path, *arguments: str) -> None:
        self.log = log
        settings = ["-p", "autostart:=false", "-p", "diagnostics_period_s:=0.1"]
        command = [sys.executable, "-m", "multi_dnn_ros.cli.main", "run", "--ros-args", *settings, *arguments]
        with log.open("wb") as file:
            environment = {**os.environ, **loopback_environment(domain)}
            self.process = server.popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def until(self, text: str) -> None:
        end = time.monotonic() + WAIT_S
        while text not in self.log.read_text():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20.0) == 0


@pytest.mark.long
def test_both_nodes_warn_until_one_ends(domain: int, tmp_path: Path, fork_server: ForkServer) -> None:
    first = Run(fork_server, domain, tmp_path / "first")
    second = Run(fork_server, domain, tmp_path / "second")
    elsewhere = Run(fork_server, domain, tmp_path / "elsewhere", "-r", "__ns:=/robot2")
    for node in (first, second):
        node.until(WARNING)
        assert "-r __ns:=/robot2" in node.log.read_text()
    elsewhere.until("robot2.multi_dnn")  # it runs, and looks for other nodes, too
    first.end()
    second.until(GONE)
    second.end()
    elsewhere.end()
    assert [node.log.read_text().count("another node is named") for node in (first, second, elsewhere)] == [1, 1, 0]


def test_the_status_of_the_node_shows_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_name, "CONFIRMED_S", 0.0)
    bench.node()
    bench.until(lambda: bench.status("node").message == "unconfigured", "the status of the only node")
    assert bench.change("configure")
    bench.until(lambda: bench.status("node").message == "inactive", "the status of the only node")
    assert bench.status("node").level == 0
    namesake = rclpy.create_node("multi_dnn", context=bench.context)
    bench.until(lambda: "; another node is named" in bench.status("node").message, "the status of one of two nodes")
    assert bench.status("node").message == "inactive; another node is named /multi_dnn, too"
    assert bench.status("node").level == 1
    namesake.destroy_node()
    bench.until(lambda: bench.status("node").message == "inactive", "the status of the only node")


class Graph:
    """A node `dnn` in a namespace, and the list of nodes that its middleware has discovered."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, str]] = []

    def get_name(self) -> str:
        return "dnn"

    def get_namespace(self) -> str:
        return "/robot"

    def get_fully_qualified_name(self) -> str:
        return "/robot/dnn"

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        return self.nodes


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_entry_of_a_killed_node_causes_no_warning() -> None:
    """As after a restart: the node is started again while the list still contains the killed one."""
    graph, warnings, lines, clock = Graph(), [], [], Clock()
    check = SameNameCheck(graph, warnings.append, lines.append, clock)
    for _ in range(3):  # killed repeatedly: the times do not add up
        graph.nodes = [("dnn", "/robot")] * 2
        for _ in range(20):
            check.update()
            clock.now_s += 1.0
        graph.nodes = [("dnn", "/robot")]
        check.update()
    assert (warnings, lines, check.text) == ([], [], "")


@given(st.lists(st.lists(st.sampled_from([("dnn", "/robot"), ("dnn", "/"), ("camera", "/robot")]), max_size=6)))
def test_only_nodes_with_the_full_name_count(seen: list[list[tuple[str, str]]]) -> None:
    """For any sequence of node lists: a warning when the number of others grows, a line when none is left."""
    graph, warnings, lines, before, clock = Graph(), [], [], 0, Clock()
    check = SameNameCheck(graph, warnings.append, lines.append, clock)
    for nodes in seen:
        graph.nodes = nodes
        warned, informed = len(warnings), len(lines)
        check.update()
        clock.now_s += CONFIRMED_S
        check.update()
        others = max(nodes.count(("dnn", "/robot")) - 1, 0)
        assert check.others == others
        assert bool(check.text) == bool(others)
        assert len(warnings) - warned == (others > before)
        assert len(lines) - informed == (before > 0 and others == 0)
        before = others


@pytest.mark.parametrize(("others", "text"), [(1, "another node is named"), (2, "2 other nodes are named")])
def test_the_text_counts_the_others(others: int, text: str) -> None:
    graph = Graph()
    graph.nodes = [("dnn", "/robot")] * (1 + others)
    clock = Clock()
    check = SameNameCheck(graph, lambda line: None, lambda line: None, clock)
    check.update()
    clock.now_s = CONFIRMED_S
    check.update()
    assert check.text == f"{text} /robot/dnn, too"
