"""When the shares of a fleet are decided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from multi_dnn_ros.fleet import decisions
from multi_dnn_ros.fleet.decisions import Decisions
from multi_dnn_ros.fleet.jobs_file import JobsFile


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time in seconds, which the test sets."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(decisions, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_a_change_is_judged_by_steps_with_the_present_shares(clock: SimpleNamespace) -> None:
    """Period 60 s, so that a trial takes 10 s. The change takes effect 50 s after the period is over."""
    jobs = [{"name": "a", "model": "m", "data": "d", "global_batch": 100, "steps": 9}]
    launcher: Any = SimpleNamespace(units=("cpu", "cpu"))
    found = Decisions(launcher, JobsFile.model_validate({"jobs": jobs}))
    job: Any = SimpleNamespace(placed=True, is_current=True)
    waiting: Any = SimpleNamespace(placed=False, is_current=False)
    clock.s += 59.0
    assert not found.is_due(60.0, [job, waiting])
    job.is_current = False
    clock.s += 50.0
    assert not found.is_due(60.0, [job, waiting])
    job.is_current = True
    clock.s += 9.0
    assert not found.is_due(60.0, [job, waiting])
    clock.s += 2.0
    assert found.is_due(60.0, [job, waiting])
    found.make_due()  # a job has ended: the steps of the others still count
    assert found.is_due(60.0, [job])
