"""The logger of the node with a rclpy that writes in the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_bench import Bench
from rclpy.logging import LoggingSeverity

from multi_dnn_ros.common.background_output import BackgroundOutput
from multi_dnn_ros.ros import queued_logger
from multi_dnn_ros.ros.queued_logger import QueuedLogger, pieces


class StuckLogger:
    """As rclpy's, with a console that takes nothing until `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.lowest = LoggingSeverity.DEBUG

    def is_enabled_for(self, severity: LoggingSeverity) -> bool:
        return severity >= self.lowest

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


def test_messages_below_the_level_are_not_queued(output: BackgroundOutput) -> None:
    stuck = StuckLogger()
    stuck.lowest = LoggingSeverity.WARN
    stuck.open.set()
    assert not QueuedLogger(stuck).info("not shown")
    assert QueuedLogger(stuck).warning("shown")
    assert output.close(60.0)
    assert stuck.lines == [("warning", "shown", {})]


def test_a_long_message_is_written_in_parts_that_fit_into_a_page(output: BackgroundOutput) -> None:
    stuck = StuckLogger()
    stuck.open.set()
    QueuedLogger(stuck).error("x" * 9000)
    assert output.close(60.0)
    assert "".join(text for _, text, _ in stuck.lines) == "x" * 9000
    assert max(len(text) for _, text, _ in stuck.lines) <= 3500


@given(text=st.text(max_size=60), max_bytes=st.integers(4, 20))
def test_pieces_are_short_and_complete(text: str, max_bytes: int) -> None:
    found = list(pieces(text, max_bytes))
    assert all(len(piece.encode()) <= max_bytes for piece in found)
    rest = text
    for piece in found:  # between two pieces one end of line may be left out
        rest = rest if rest.startswith(piece) else rest.removeprefix("\n")
        assert rest.startswith(piece)
        rest = rest[len(piece) :]
    assert rest in ("", "\n")


def test_options_apply_to_the_calling_line(bench: Bench) -> None:
    """Two lines with `once` are both written, and one line only once."""
    logger = bench.node().get_logger()
    written = [logger.warning("first", once=True) for _ in range(3)]
    assert written == [True, False, False]
    assert logger.warning("second", once=True)


def test_options_and_other_methods_reach_the_logger_directly(output: BackgroundOutput) -> None:
    stuck = StuckLogger()
    stuck.open.set()
    QueuedLogger(stuck).warning("w", once=True)
    QueuedLogger(stuck).set_level("x")
    assert stuck.lines == [("warning", "w", {"once": True}), ("set_level", "x", {})]


def test_the_node_uses_it(bench: Bench) -> None:
    assert isinstance(bench.node().get_logger(), QueuedLogger)
