"""How often a warning about a lasting problem is shown; the time is the test's."""

from __future__ import annotations

from multi_dnn_ros.fleet.repeated_warnings import PERIOD_S, RepeatedWarnings


def test_a_warning_is_repeated_after_a_period_and_at_once_after_its_cause_had_gone() -> None:
    shown: list[str] = []
    now = 0.0
    warnings = RepeatedWarnings(shown.append, lambda: now)
    warnings.settle("a", "nothing was shown")
    for second in range(int(PERIOD_S) + 1):
        now = float(second)
        warnings.warn("a", f"a at {second}")
        warnings.warn("b", "b")
    assert shown == ["a at 0", "b", "a at 60", "b"]
    warnings.settle("a", "a is settled")
    warnings.settle("a", "a is settled")
    warnings.warn("a", "a again")
    assert shown[4:] == ["a is settled", "a again"]
