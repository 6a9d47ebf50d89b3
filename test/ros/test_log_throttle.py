"""How often a message of the same kind is logged; the time is the test's."""

from __future__ import annotations

import pytest

from multi_dnn_ros.ros.log_throttle import LogThrottle

_PERIOD_S = 60.0


@pytest.mark.parametrize("start", [0.0, -1e4, 1e4])
def test_a_message_is_repeated_after_a_period_with_the_number_of_suppressed_ones(start: float) -> None:
    now = start
    throttle = LogThrottle(_PERIOD_S, lambda: now)
    passed: list[tuple[str, float, str]] = []
    for second in range(int(_PERIOD_S) + 1):
        now = start + second
        passed.extend((kind, now - start, text) for kind in "ab" if (text := throttle.passes(kind)) is not None)
    more = f" ({_PERIOD_S - 1:.0f} more like it since the last message)"
    assert passed == [("a", 0.0, ""), ("b", 0.0, ""), ("a", _PERIOD_S, more), ("b", _PERIOD_S, more)]


def test_a_message_passes_at_once_after_its_cause_had_gone() -> None:
    throttle = LogThrottle(_PERIOD_S, lambda: 0.0)
    assert not throttle.forget("a")
    assert throttle.passes("a") == throttle.passes("b") == ""
    assert throttle.passes("a") is None
    assert throttle.forget("a")
    assert not throttle.forget("a")
    assert throttle.passes("a") == ""
    assert throttle.passes("b") is None
