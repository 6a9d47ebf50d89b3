"""The logger of the node with a rclpy that writes in the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from node_bench import Bench

from multi_dnn_ros.common.background_output import BackgroundOutput
from multi_dnn_ros.ros import node, queued_logger
from multi_dnn_ros.ros.queued_logger import QueuedLogger


class StuckLogger:
    """As rclpy's, with a console that takes nothing until `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, severity: str) -> Any:
        def log(text: str, **options: Any) -> bool:
            assert self.open.wait(60.0)
            self.lines.append((severity, text, options))
            return True

        return log


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundOutput]:
    instance = BackgroundOutput()
    monkeypatch.setattr(queued_logger, "OUTPUT", instance)
    instance.start()
    yield instance
    instance.close(60.0)


def test_callers_do_not_wait_and_the_order_stays(output: BackgroundOutput) -> None:
    stuck = StuckLogger()
    logger = QueuedLogger(stuck)
    severities = ["debug", "info", "warning", "error", "fatal"]
    for number, severity in enumerate(severities):
        assert getattr(logger, severity)(f"line {number}")
    assert stuck.lines == []
    stuck.open.set()
    assert output.close(60.0)
    assert stuck.lines == [(severity, f"line {number}", {}) for number, severity in enumerate(severities)]


def test_options_and_other_methods_reach_the_logger_directly(output: BackgroundOutput) -> None:
    stuck = StuckLogger()
    stuck.open.set()
    QueuedLogger(stuck).warning("w", once=True)
    QueuedLogger(stuck).set_level("x")
    assert stuck.lines == [("warning", "w", {"once": True}), ("set_level", "x", {})]


def test_the_node_uses_it_with_an_installed_rclpy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ros_node = bench.node()
    for is_standalone in (True, False):
        monkeypatch.setattr(node, "is_standalone", lambda answer=is_standalone: answer)
        assert isinstance(ros_node.get_logger(), QueuedLogger) is not is_standalone
