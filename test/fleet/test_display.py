"""What a fleet shows on a terminal and elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from multi_dnn_ros.fleet.display import Display

#: A fleet without jobs, 12 s after its start.
FLEET: Any = SimpleNamespace(seconds=12.0, jobs={}, unit_names=["cpu:1"], decisions=SimpleNamespace(use=[0.5]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_title_above_the_table_and_only_the_lines_since_then() -> None:
    output = Terminal()
    display = Display(output)
    display.set_title("policy fair")
    display(FLEET, "a: started")
    display.set_title("policy even")
    display(FLEET, "b: started")
    screens = output.getvalue().split("\x1b[H\x1b[J")[1:]
    assert len(screens) == 2
    for screen, title, line in zip(screens, ("policy fair", "policy even"), ("a: started", "b: started"), strict=True):
        lines = screen.splitlines()
        assert lines[0] == title
        assert "use of the units: cpu:1 50%" in lines
        assert lines[-1] == f"    12.0 s  {line}"
    assert "a: started" not in screens[1]


def test_elsewhere_titles_and_events_are_lines() -> None:
    output = io.StringIO()
    display = Display(output)
    display.set_title("policy fair")
    display(FLEET, "a: started")
    display(FLEET, "")
    assert output.getvalue().splitlines() == ["policy fair", "    12.0 s  a: started"]
