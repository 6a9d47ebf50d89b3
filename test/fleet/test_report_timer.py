"""When a job counts as hung, by the messages that it has sent; the time is the test's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.fleet.messages import Busy, Message, Paused, Ready, Report
from multi_dnn_ros.fleet.report_timer import AWAITED_S, SILENT_STEPS, ReportTimer

_SHORTEST_S = 60.0


def report(step_s: float) -> Report:
    return Report(1, 5, 100, 5, step_s, 1.0)


def timer(*messages: Message) -> ReportTimer:
    """Of a job that has got command 1 and has sent these messages."""
    found = ReportTimer()
    found.command_sent()
    for message in messages:
        found.received(message, 1)
    return found


@given(st.floats(1e-3, 100.0), st.floats(0.0, 1e4))
def test_a_job_that_trains_hangs_after_many_steps_without_a_report(step_s: float, silent_s: float) -> None:
    job = timer(report(step_s))
    job.add(silent_s)
    assert (job.overdue(_SHORTEST_S) is not None) == (silent_s >= max(_SHORTEST_S, SILENT_STEPS * step_s))


@given(st.lists(st.sampled_from(["command", "second"]), max_size=200))
def test_commands_do_not_extend_the_time(events: list[str]) -> None:
    job = timer(report(0.1))
    for event in events:
        if event == "command":
            job.command_sent()
        else:
            job.add(1.0)
    assert (job.overdue(_SHORTEST_S) is not None) == (events.count("second") >= _SHORTEST_S)


def test_a_paused_job_never_hangs() -> None:
    job = timer(report(0.1), Paused(1, 5, 100))
    job.add(1e6)
    assert job.overdue(_SHORTEST_S) is None


def test_a_job_that_has_got_no_command_never_hangs() -> None:
    job = ReportTimer()
    job.add(1e6)
    assert job.overdue(_SHORTEST_S) is None


def test_a_busy_job_has_the_time_that_it_names() -> None:
    """Messages of ranks that are ready to join do not extend it: they may wait for one that hangs."""
    job = timer(report(0.1), Busy("writing a checkpoint", 1800.0, "busy_limit_s"))
    assert job.is_busy
    job.add(1799.0)
    job.received(Ready(1), 1)
    assert job.overdue(_SHORTEST_S) is None
    job.add(1.0)
    assert job.overdue(_SHORTEST_S) == "did not finish writing a checkpoint within 1800 s (busy_limit_s)"


def test_a_job_that_is_busy_for_long_is_not_awaited() -> None:
    job = timer(report(0.1), Busy("writing a checkpoint", 1800.0, "busy_limit_s"))
    job.add(AWAITED_S - 1)
    assert job.is_awaited
    job.add(1.0)
    assert not job.is_awaited
    job.received(report(0.1), 1)
    assert job.is_awaited


def test_a_paused_job_hangs_if_it_does_not_continue() -> None:
    job = timer(report(0.1), Paused(1, 5, 100))
    job.add(1e6)
    job.command_sent()
    job.add(_SHORTEST_S - 1)
    assert job.overdue(_SHORTEST_S) is None
    job.add(1.0)
    assert job.overdue(_SHORTEST_S) is not None


def test_a_pause_that_a_later_command_has_ended_does_not_excuse_silence() -> None:
    job = timer(report(0.1))
    job.received(Paused(1, 5, 100), 2)
    job.add(_SHORTEST_S)
    assert job.overdue(_SHORTEST_S) is not None
