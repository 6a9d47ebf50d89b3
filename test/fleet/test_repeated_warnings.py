"""How often a warning about a lasting problem is shown; the time is the test's."""

from __future__ import annotations

from multi_dnn_ros.fleet.repeated_warnings import PERIOD_S, RepeatedWarnings


def test_a_warning_is_repeated_after_a_period_and_at_once_after_its_cause_had_gone() -> None:
    now = 0.0
    warnings = RepeatedWarnings(lambda: now)
    assert not warnings.settle("a")
    due: list[tuple[str, float]] = []
    for second in range(int(PERIOD_S) + 1):
        now = float(second)
        due.extend((key, now) for key in "ab" if warnings.due(key))
    assert due == [("a", 0.0), ("b", 0.0), ("a", PERIOD_S), ("b", PERIOD_S)]
    assert warnings.settle("a")
    assert not warnings.settle("a")
    assert warnings.due("a")
    assert not warnings.due("b")
