"""Random faults of engine processes (kill, stop, no memory): every frame is answered exactly once."""

from __future__ import annotations

import contextlib

import fake_pipelines
import pytest
from terminal import Terminal

from multi_dnn_ros.benchmark.chaos import ChaosPlan, chaos_table, measure_chaos


@pytest.mark.long
@pytest.mark.usefixtures("new_interpreters")
@pytest.mark.parametrize(("standby", "seed"), [("hot", 1), ("none", 2)])
def test_every_frame_is_answered_once_under_random_faults(standby: str, seed: int) -> None:
    config = fake_pipelines.settings(
        "lane",
        "object",
        "pedestrian",
        cameras=("front", "rear"),
        standby=standby,
        fault_window_s=1.0,
        heartbeat_timeout_s=0.7,
        job_timeout_s=1.0,
    )
    plan = ChaosPlan(seconds=20.0, every_s=(1.0, 2.0), size=(64, 48), seed=seed)
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal):
        figures = measure_chaos(config, plan, fake_pipelines.build)
    print(chaos_table(figures))
    assert "faults: " in terminal.getvalue()
    assert " of 20 s, " in terminal.getvalue()
    assert figures["findings"] == []
    assert sum(figures["faults"].values()) >= 5
    for stream in figures["streams"].values():
        assert stream["offered"] > 100
        assert stream["published"] > 0
