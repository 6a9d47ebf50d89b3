"""Call sites of logging: the options of each, and which of its messages pass."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Any, Final


class LoggingSeverity(IntEnum):
    """Severity of a message."""

    UNSET = 0
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


_OPTIONS: Final = ("throttle_duration_sec", "throttle_time_source_type", "skip_first", "once")


class CallSite:
    """A call in the source that logs, with its options.

    `throttle_duration_sec` passes one message per interval of the clock `throttle_time_source_type` (default: the
    system clock); `skip_first` drops the first message, `once` passes only the first one. They are evaluated in this
    order; if one drops a message, the remaining ones are not evaluated.
    """

    def __init__(self, severity: LoggingSeverity, name: str, options: dict[str, Any]) -> None:
        """Store the options of a call site.

        Raises:
            TypeError: for an unknown option, or a throttle clock without a duration.
            ValueError: for an invalid throttle clock.
        """
        self.severity = severity
        self.name = name
        for option in options:
            if option not in _OPTIONS:
                raise TypeError(f'parameter "{option}" is not one of the recognized logging options "{list(_OPTIONS)}"')
        self.throttle_sec = options.get("throttle_duration_sec")
        self.clock = options.get("throttle_time_source_type")
        self.skip_first = bool(options.get("skip_first"))
        self.once = bool(options.get("once"))
        self.throttles = bool(self.throttle_sec or self.clock)
        if self.throttles and "throttle_duration_sec" not in options:
            raise TypeError(
                'required parameter "throttle_duration_sec" not specified but is required for the the logging filter '
                '"throttle"'
            )
        if self.throttles and "throttle_time_source_type" in options and not hasattr(self.clock, "now_ns"):
            raise ValueError(f'Received throttle_time_source_type of "{self.clock}" is not a clock instance')
        self._last_ns = 0
        self._skipped = False
        self._logged = False

    def check_same(self, other: CallSite) -> None:
        """Check that the options equal those of the first call.

        Raises:
            ValueError: says what changed.
        """
        if other.severity != self.severity:
            raise ValueError(
                f"Logger severity cannot be changed between calls: {self.severity.name}, then {other.severity.name} "
                "from the same call site; use a call for each severity"
            )
        if other.name != self.name:
            raise ValueError(f"Logger name cannot be changed between calls: {self.name!r}, then {other.name!r}")
        if (other.throttles, other.skip_first, other.once) != (self.throttles, self.skip_first, self.once):
            raise ValueError("Requested logging filters cannot be changed between calls.")
        if self.throttles and (other.throttle_sec, other.clock) != (self.throttle_sec, self.clock):
            raise ValueError("Logging filter parameters cannot be changed between calls.")

    def passes(self) -> bool:
        """Return whether the current message passes."""
        if self.throttles:
            now_ns = time.time_ns() if self.clock is None else self.clock.now_ns()
            if now_ns < self._last_ns + (self.throttle_sec or 0) * 1e9:
                return False
            self._last_ns = now_ns
        if self.skip_first and not self._skipped:
            self._skipped = True
            return False
        if self.once:
            first, self._logged = not self._logged, True
            return first
        return True
