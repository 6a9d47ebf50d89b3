"""The progress bar of commands that measure."""

from __future__ import annotations

import io

import pytest
from terminal import Terminal

from multi_dnn_ros.cli.progress import progress_bar


def test_the_bar_shows_what_is_done_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    now = [100.0]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress_bar("resnet18", "block") as update:
        update(0, 4)
        now[0] += 60.0
        update(1, 4)
        assert "resnet18:  25%" in terminal.getvalue()
        assert "1/4 [01:00<03:00, 60.00s/block]" in terminal.getvalue()
        now[0] += 60.0
        update(0, 2, "resnet50")  # begins again, with another total
        now[0] += 10.0
        update(1, 2, "resnet50")
        assert "resnet50:  50%" in terminal.getvalue()
        assert "1/2 [00:10<00:10, 10.00s/block]" in terminal.getvalue()


def test_no_bar_is_drawn_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with progress_bar() as update:
        update(0, 4)
        update(4, 4, "done")
    assert file.getvalue() == ""
