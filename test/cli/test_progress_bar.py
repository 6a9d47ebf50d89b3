"""The progress bar of commands that measure."""

from __future__ import annotations

import io

import pytest
from terminal import Terminal

from multi_dnn_ros.cli.figures import progress_bar


def test_the_bar_shows_what_is_done_and_the_time_left_but_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file, now = Terminal(), io.StringIO(), [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    for stream in (terminal, file):
        monkeypatch.setattr("sys.stderr", stream)
        with progress_bar("resnet18", "block") as update:
            update(0, 4)
            now[0] += 60.0
            update(1, 4)
            update(0, 2, "resnet50")  # begins again, with another total
            now[0] += 10.0
            update(1, 2, "resnet50")
    assert "resnet18:  25%" in terminal.getvalue()
    assert "1/4 [01:00<03:00, 60.00s/block]" in terminal.getvalue()
    assert "1/2 [00:10<00:10, 10.00s/block]" in terminal.getvalue()
    assert file.getvalue() == ""
