"""The progress bar of scenarios that run for a given time."""

from __future__ import annotations

import pytest
from terminal import Terminal

from multi_dnn_ros.benchmark.time_bar import time_bar


def test_the_bar_shows_the_seconds_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with time_bar(600.0, "faults") as bar:
        for _ in range(3):
            now[0] += 60.0
            bar.update(60.0)
    assert "faults:  30%" in terminal.getvalue()
    assert "180 of 600 s, 07:00 left" in terminal.getvalue()


def test_a_scenario_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may exceed the time by seconds, for example when a fault is injected."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with time_bar(60.0, "faults") as bar:
        bar.update(59.0)
        bar.update(3.0)
        bar.refresh()
    assert "faults: 100%" in terminal.getvalue()
    assert "60 of 60 s, 00:00 left" in terminal.getvalue()
